//! Things under numbers that are used again.

#[derive(Debug)]
pub(super) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub fn insert(&mut self, thing: T) -> usize {
        match self.free.pop() {
            Some(id) => {
                self.places[id] = Some(thing);
                id
            }
            None => {
                self.places.push(Some(thing));
                self.places.len() - 1
            }
        }
    }
    pub fn remove(&mut self, id: usize) -> Option<T> {
        let thing = self.places.get_mut(id)?.take()?;
        self.free.push(id);
        Some(thing)
    }
    #[inline]
    pub fn get(&self, id: usize) -> Option<&T> {
        self.places.get(id)?.as_ref()
    }
    #[inline]
    pub fn get_mut(&mut self, id: usize) -> Option<&mut T> {
        self.places.get_mut(id)?.as_mut()
    }
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
    pub fn ids(&self) -> Vec<usize> {
        (0..self.places.len()).filter(|&id| self.places[id].is_some()).collect()
    }
}
