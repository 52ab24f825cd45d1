//! Lists whose places are used again.

/// Puts an item where one was taken out, if there is such a place; its number.
pub fn place<T>(items: &mut Vec<T>, free: &mut Vec<u32>, item: T) -> u32 {
    let number = free.pop().unwrap_or(items.len() as u32);
    match items.get_mut(number as usize) {
        Some(removed) => *removed = item,
        None => items.push(item),
    }
    number
}
