//! Lists with reusable slots.

/// Inserts an item into a free slot, or at the end. Returns the number of its slot.
pub fn insert<T>(items: &mut Vec<T>, free: &mut Vec<u32>, item: T) -> u32 {
    let number = free.pop().unwrap_or(items.len() as u32);
    match items.get_mut(number as usize) {
        Some(removed) => *removed = item,
        None => items.push(item),
    }
    number
}
