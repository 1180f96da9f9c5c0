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

/// The ranks over which news travels from one rank to another, both ends included.
pub fn way(from: u32, to: u32) -> Vec<u32> {
    let (mut up, mut down) = (vec![from], vec![to]);
    let (mut low, mut high) = (from, to);
    // Whoever is below another has the greater number.
    while low != high {
        if low > high {
            low = parent(low).unwrap_or(0);
            up.push(low);
        } else {
            high = parent(high).unwrap_or(0);
            down.push(high);
        }
    }
    down.pop();
    up.extend(down.into_iter().rev());
    up
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_goes_from_neighbour_to_neighbour() {
        assert_eq!(way(3, 3), [3]);
        assert_eq!(way(3, 2), [3, 0, 2]);
        assert_eq!(way(5, 1), [5, 1]);
        assert_eq!(way(0, 8), [0, 1, 8]);
        assert_eq!(way(6, 21), [6, 1, 5, 21]);
        for (from, to) in (0..40).flat_map(|from| (0..40).map(move |to| (from, to))) {
            let way = way(from, to);
            assert_eq!((way[0], way[way.len() - 1]), (from, to));
            for pair in way.windows(2) {
                assert!(parent(pair[0]) == Some(pair[1]) || parent(pair[1]) == Some(pair[0]));
            }
        }
    }

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
