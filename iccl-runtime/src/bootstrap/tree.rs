//! The shape of the tree over which ranks reach each other: rank 0 on top, four below each.

const FAN_OUT: u32 = 4;

/// The rank above; `None` for rank 0.
pub(super) fn parent(rank: u32) -> Option<u32> {
    rank.checked_sub(1).map(|below_first| below_first / FAN_OUT)
}

/// The ranks directly below.
pub(super) fn children(rank: u32, world_size: u32) -> std::ops::Range<u32> {
    let first = rank.saturating_mul(FAN_OUT).saturating_add(1).min(world_size);
    first..first.saturating_add(FAN_OUT).min(world_size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_and_children_agree() {
        for world_size in 1..200 {
            let mut parents = 0;
            for rank in 0..world_size {
                for child in children(rank, world_size) {
                    assert_eq!(parent(child), Some(rank));
                    parents += 1;
                }
            }
            assert_eq!(parents, world_size - 1, "everyone but rank 0 is someone's child");
        }
        assert_eq!(parent(0), None);
        assert!(children(u32::MAX - 1, u32::MAX).is_empty());
    }
}
