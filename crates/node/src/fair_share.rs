//! Sharing of slots among receivers, some of which take nothing now, or never again.

/// Most slots that one receiver may have out of `slots`, while `free` are unassigned. Three quarters of the slots are
/// shared by the rule of Choudhury and Hahne for a switch's memory, with a parameter of 1: a receiver may have as many of
/// them as are free. The last quarter is handed out in small parts. So one receiver alone has three eighths. Of 512
/// slots, ninety receivers that stop one after the other and keep their slots leave some for the next.
///
/// The limit grows with `free`: a receiver within the limit of an outdated, smaller count is within the current limit.
#[inline(always)]
pub fn limit(slots: u32, free: u32) -> u32 {
    match free {
        0 => 0,
        _ => free.saturating_sub(slots / 4).max(free / 32).max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::limit;

    #[test]
    fn many_that_keep_what_they_have_leave_some_for_the_next() {
        let all_stop = |slots: u32| {
            let mut free = slots;
            let had = core::iter::from_fn(|| {
                let own = (0..).take_while(|&own| own < limit(slots, free - own)).count() as u32;
                free -= own;
                (own > 0).then_some(own)
            });
            had.collect::<alloc::vec::Vec<_>>()
        };
        let [veth, light] = [128, 512].map(all_stop);
        assert_eq!((&light[..8], light.len(), light.iter().sum()), (&[192, 96, 48, 24, 12, 6, 4, 3][..], 98, 512));
        assert_eq!((&veth[..6], veth.len()), (&[48, 24, 12, 6, 3, 2][..], 39));
    }

    #[test]
    fn it_grows_with_what_is_free() {
        for slots in [0, 1, 7, 16, 128, 1024] {
            assert!((1..=slots).all(|free| limit(slots, free) >= limit(slots, free - 1)), "{slots}");
        }
    }
}
