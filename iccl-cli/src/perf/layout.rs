//! What the buffers of a rank hold, before an operation and after it, with two buffers and with one.

use std::rc::Rc;

use super::benchmark::{Case, Operation};
use super::image::{Image, Part};
use super::oracle::Oracle;
use super::pattern::Pattern;

/// The buffers of one rank for one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) case: Case,
    pub(super) rank: u32,
    pub(super) ranks: u32,
    /// The call's count: of elements, or of elements in a block.
    pub(super) count: u64,
}

/// What buffers have to hold when the operation is over.
pub(super) struct Images {
    /// The input, as it was before.
    pub(super) input: Image,
    /// The output; where a rank has none, what was there before.
    pub(super) output: Image,
    /// The one buffer in place.
    pub(super) joint: Image,
}

/// What a block of the output is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Elements of the reduction of all ranks' inputs.
    Reduction,
    /// Elements of this rank's input.
    Rank(u32),
}

impl Layout {
    fn blocks(&self) -> (u64, u64) {
        self.case.operation.blocks(self.ranks)
    }

    pub(super) fn input_elements(&self) -> u64 {
        self.count * self.blocks().0
    }

    pub(super) fn output_elements(&self) -> u64 {
        self.count * self.blocks().1
    }

    /// The elements of the longer one, which is the one buffer in place.
    pub(super) fn joint_elements(&self) -> u64 {
        self.input_elements().max(self.output_elements())
    }

    /// Where the input lies in the one buffer, in elements: the shorter one is this rank's block of the
    /// longer one.
    pub(super) fn input_offset(&self) -> u64 {
        self.offset(self.input_elements())
    }

    /// Where the output lies in the one buffer.
    pub(super) fn output_offset(&self) -> u64 {
        self.offset(self.output_elements())
    }

    fn offset(&self, elements: u64) -> u64 {
        if elements < self.joint_elements() { u64::from(self.rank) * self.count } else { 0 }
    }

    fn is_root(&self) -> bool {
        self.case.root.is_none_or(|root| root == self.rank)
    }

    /// Whether the operation looks at this rank's input.
    fn has_input(&self) -> bool {
        self.is_root() || !matches!(self.case.operation, Operation::Broadcast | Operation::Scatter)
    }

    /// Whether this rank gets anything.
    pub(super) fn has_output(&self) -> bool {
        self.is_root() || !matches!(self.case.operation, Operation::Reduce | Operation::Gather)
    }

    /// Whether "in place" says anything about this rank.
    pub(super) fn can_be_joint(&self) -> bool {
        self.has_input() && self.has_output()
    }

    /// What the blocks of the output are, one after the other.
    fn sources(&self) -> Vec<Source> {
        match self.case.operation {
            Operation::AllReduce | Operation::Reduce | Operation::ReduceScatter => {
                vec![Source::Reduction]
            }
            Operation::Broadcast | Operation::Scatter => {
                vec![Source::Rank(self.case.root.unwrap_or(0))]
            }
            Operation::Sendrecv => vec![Source::Rank((self.rank + self.ranks - 1) % self.ranks)],
            Operation::AllGather | Operation::Gather | Operation::AllToAll => {
                (0..self.ranks).map(Source::Rank).collect()
            }
            Operation::Barrier => Vec::new(),
        }
    }

    /// What has to be in the buffers afterwards.
    pub(super) fn images(&self, oracle: &Oracle) -> Images {
        let input = self.pattern(|place| oracle.input(self.rank, place));
        let input_part =
            |first, elements| Part { pattern: Rc::clone(&input), first, elements, format: None };
        let output = if self.has_output() {
            self.output(oracle)
        } else {
            let elements = self.output_elements();
            let element_bytes = self.case.dtype.size_bytes();
            let untouched = Pattern::new(elements as usize, element_bytes, |place| {
                !oracle.input(self.rank, place)
            });
            vec![Part { pattern: Rc::new(untouched), first: 0, elements, format: None }]
        };
        // Around a shorter output, the input stays; around a longer one there is nothing.
        let behind = self.output_offset() + self.output_elements();
        let mut joint = vec![input_part(0, self.output_offset())];
        joint.extend(output.iter().cloned());
        joint.push(input_part(behind, self.joint_elements() - behind));
        Images {
            input: Image::new(vec![input_part(0, self.input_elements())]),
            output: Image::new(output),
            joint: Image::new(joint),
        }
    }

    fn output(&self, oracle: &Oracle) -> Vec<Part> {
        // Who has a block for each rank gives this rank its own.
        let has_blocks = self.blocks().0 > 1;
        let first = if has_blocks { u64::from(self.rank) * self.count } else { 0 };
        let part = |source| {
            let (pattern, format) = match source {
                Source::Reduction => {
                    (self.pattern(|place| oracle.reduction(place)), oracle.computed_format())
                }
                Source::Rank(rank) => (self.pattern(|place| oracle.input(rank, place)), None),
            };
            Part { pattern, first, elements: self.count, format }
        };
        self.sources().into_iter().map(part).collect()
    }

    /// A vector as long as the input.
    fn pattern(&self, value: impl Fn(u64) -> u64) -> Rc<Pattern> {
        let elements = self.input_elements() as usize;
        Rc::new(Pattern::new(elements, self.case.dtype.size_bytes(), value))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use iccl_plugin_api::{DataType, RedOp};

    use super::*;

    const RANKS: u32 = 3;

    /// Longer than a period of the pattern for a whole vector, shorter for a block.
    const COUNT: u64 = 7_000;

    fn layout(operation: Operation, rank: u32) -> Layout {
        let op = operation.reduces().then_some(RedOp::Sum);
        let root = operation.has_root().then_some(1);
        let case = Case { operation, dtype: DataType::I32, op, root };
        Layout { case, rank, ranks: RANKS, count: COUNT }
    }

    fn images(layout: &Layout) -> Images {
        let task = layout.case.task();
        let dtype = layout.case.dtype;
        layout.images(&Oracle { dtype, task, ranks: RANKS, round: 3, wide_sums: true })
    }

    fn elements(image: &Image) -> Vec<i32> {
        let mut bytes = vec![0; image.bytes() as usize];
        let Ok(()) = image.write(|offset, piece| {
            bytes[offset..offset + piece.len()].copy_from_slice(piece);
            Ok::<_, Infallible>(())
        });
        bytes
            .chunks_exact(4)
            .map(|element| i32::from_le_bytes(element.try_into().expect("four bytes")))
            .collect()
    }

    fn wrong(image: &Image, found: &[i32]) -> u64 {
        let bytes: Vec<u8> = found.iter().flat_map(|element| element.to_le_bytes()).collect();
        assert_eq!(bytes.len() as u64, image.bytes());
        let Ok(wrong) = image.wrong(|offset, into| {
            into.copy_from_slice(&bytes[offset..offset + into.len()]);
            Ok::<_, Infallible>(())
        });
        wrong
    }

    /// The definitions, on the inputs of all ranks, element by element.
    fn by_definition(operation: Operation, rank: usize, inputs: &[Vec<i32>]) -> Vec<i32> {
        let count = COUNT as usize;
        let block = |vector: &[i32], rank: usize| vector[rank * count..][..count].to_vec();
        let sums = || {
            let sum = |place| inputs.iter().fold(0_i32, |sum, one| sum.wrapping_add(one[place]));
            (0..inputs[0].len()).map(sum).collect::<Vec<i32>>()
        };
        match operation {
            Operation::AllReduce | Operation::Reduce => sums(),
            Operation::ReduceScatter => block(&sums(), rank),
            Operation::Broadcast => inputs[1].clone(),
            Operation::Scatter => block(&inputs[1], rank),
            Operation::AllGather | Operation::Gather => inputs.concat(),
            Operation::AllToAll => inputs.iter().flat_map(|one| block(one, rank)).collect(),
            Operation::Sendrecv => inputs[(rank + 2) % 3].clone(),
            Operation::Barrier => Vec::new(),
        }
    }

    fn with_elements() -> impl Iterator<Item = Operation> {
        Operation::ALL.into_iter().filter(|operation| operation.moves_elements())
    }

    #[test]
    fn what_has_to_come_out_is_what_the_definitions_say() {
        for operation in with_elements() {
            let inputs: Vec<Vec<i32>> =
                (0..RANKS).map(|rank| elements(&images(&layout(operation, rank)).input)).collect();
            for rank in 0..RANKS {
                let layout = layout(operation, rank);
                let images = images(&layout);
                if !layout.has_output() {
                    continue;
                }
                let output = by_definition(operation, rank as usize, &inputs);
                assert_eq!(wrong(&images.output, &output), 0, "{operation} on rank {rank}");
                // In place, around a shorter output the input has to stay.
                if layout.can_be_joint() {
                    let mut joint = vec![0; layout.joint_elements() as usize];
                    let input_at = layout.input_offset() as usize;
                    let input = &inputs[rank as usize];
                    joint[input_at..input_at + input.len()].copy_from_slice(input);
                    let output_at = layout.output_offset() as usize;
                    joint[output_at..output_at + output.len()].copy_from_slice(&output);
                    assert_eq!(wrong(&images.joint, &joint), 0, "{operation} on rank {rank}");
                }
            }
        }
    }

    #[test]
    fn blocks_of_others_and_blocks_that_never_came_are_counted() {
        let count = COUNT as usize;
        // By chance, two of the elements of 32 bits may be the same.
        let all_of = |blocks: u64| blocks * COUNT - 10..=blocks * COUNT;
        for operation in with_elements() {
            let image = images(&layout(operation, 1)).output;
            let right = elements(&image);
            let mut one = right.clone();
            one[count - 1] ^= 1 << 31;
            assert_eq!(wrong(&image, &one), 1, "{operation}");
            let mut missing = right.clone();
            missing[..count].iter_mut().for_each(|element| *element = !*element);
            assert_eq!(wrong(&image, &missing), COUNT, "{operation}");
            if right.len() > count {
                let mut swapped = right.clone();
                swapped.rotate_left(count);
                assert!(all_of(3).contains(&wrong(&image, &swapped)), "{operation}: rotated");
            }
        }
        // A block for another rank; one of another root, or of the neighbour on the wrong side.
        for operation in [Operation::ReduceScatter, Operation::Scatter, Operation::AllToAll] {
            let for_another = elements(&images(&layout(operation, 2)).output);
            let image = images(&layout(operation, 1)).output;
            let blocks = for_another.len() as u64 / COUNT;
            assert!(all_of(blocks).contains(&wrong(&image, &for_another)), "{operation}");
        }
        for operation in [Operation::Broadcast, Operation::Scatter] {
            let mut of_another = layout(operation, 1);
            of_another.case.root = Some(2);
            let found = elements(&images(&of_another).output);
            let image = images(&layout(operation, 1)).output;
            assert!(all_of(1).contains(&wrong(&image, &found)), "{operation}");
        }
    }

    #[test]
    fn what_may_not_be_touched_is_watched() {
        let count = COUNT as usize;
        for operation in [Operation::Reduce, Operation::Gather] {
            let bystander = layout(operation, 2);
            assert!(!bystander.has_output() && !bystander.can_be_joint(), "{operation}");
            let image = images(&bystander).output;
            let before = elements(&image);
            let root = elements(&images(&layout(operation, 1)).output);
            assert!(wrong(&image, &root) >= root.len() as u64 - 10, "{operation}");
            let mut touched = before;
            touched[count - 1] ^= 1;
            assert_eq!(wrong(&image, &touched), 1, "{operation}");
        }
        // In place, the blocks on both sides of a shorter output.
        for operation in [Operation::ReduceScatter, Operation::Scatter] {
            let layout = layout(operation, 1);
            assert_eq!(layout.output_offset(), COUNT);
            let image = images(&layout).joint;
            let mut found = elements(&image);
            found[count - 1] ^= 1;
            found[2 * count] ^= 1;
            assert_eq!(wrong(&image, &found), 2, "{operation}");
        }
        for operation in [Operation::AllGather, Operation::Gather] {
            assert_eq!(layout(operation, 1).input_offset(), COUNT);
        }
    }
}
