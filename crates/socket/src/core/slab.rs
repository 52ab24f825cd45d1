//! A slab: values by number, with reused numbers.

#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub fn insert(&mut self, thing: T) -> usize {
        match self.free.pop() {
            Some(id) => {
                self.slots[id] = Some(thing);
                id
            }
            None => {
                self.slots.push(Some(thing));
                self.slots.len() - 1
            }
        }
    }
    pub fn remove(&mut self, id: usize) -> Option<T> {
        let thing = self.slots.get_mut(id)?.take()?;
        self.free.push(id);
        Some(thing)
    }
    #[inline]
    pub fn get(&self, id: usize) -> Option<&T> {
        self.slots.get(id)?.as_ref()
    }
    #[inline]
    pub fn get_mut(&mut self, id: usize) -> Option<&mut T> {
        self.slots.get_mut(id)?.as_mut()
    }
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
    pub fn ids(&self) -> Vec<usize> {
        (0..self.slots.len()).filter(|&id| self.slots[id].is_some()).collect()
    }
}
