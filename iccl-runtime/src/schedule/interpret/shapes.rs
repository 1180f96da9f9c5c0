//! The expressions that memory can hold.

use std::collections::HashMap;

use super::super::types::Finish;

/// The number of an expression; equal expressions have equal numbers.
pub(super) type ShapeId = u32;

/// An expression over the contributions of the ranks, the same for all elements of a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Shape {
    /// What this rank had in its send buffer.
    Own(u32),
    /// The same, multiplied by the scalar that the rank gave.
    Scaled(u32),
    /// The result of one reduction step.
    Combined { operands: Vec<ShapeId>, finish: Finish },
}

/// All expressions of a run.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    shapes: Vec<Shape>,
    numbers: HashMap<Shape, ShapeId>,
}

impl Shapes {
    pub(super) fn number(&mut self, shape: Shape) -> ShapeId {
        if let Some(id) = self.numbers.get(&shape) {
            return *id;
        }
        let id = self.shapes.len() as ShapeId;
        self.shapes.push(shape.clone());
        self.numbers.insert(shape, id);
        id
    }

    pub(super) fn get(&self, id: ShapeId) -> &Shape {
        &self.shapes[id as usize]
    }

    /// The ranks whose contributions the expression combines, from left to right.
    pub(super) fn contributors(&self, id: ShapeId) -> Vec<u32> {
        match self.get(id) {
            Shape::Own(rank) | Shape::Scaled(rank) => vec![*rank],
            Shape::Combined { operands, .. } => {
                operands.iter().flat_map(|operand| self.contributors(*operand)).collect()
            }
        }
    }

    /// Computes the expression: `own` gives a rank's contribution (multiplied already, where the
    /// expression says so), `combine` reduces.
    pub(super) fn evaluate<T>(
        &self,
        id: ShapeId,
        own: &impl Fn(u32) -> T,
        combine: &impl Fn(Vec<T>, Finish) -> T,
    ) -> T {
        match self.get(id) {
            Shape::Own(rank) | Shape::Scaled(rank) => own(*rank),
            Shape::Combined { operands, finish } => {
                let operands = operands.iter().map(|operand| self.evaluate(*operand, own, combine));
                combine(operands.collect(), *finish)
            }
        }
    }

    /// The expression as text.
    pub(super) fn text(&self, id: ShapeId) -> String {
        match self.get(id) {
            Shape::Own(rank) => rank.to_string(),
            Shape::Scaled(rank) => format!("s·{rank}"),
            Shape::Combined { operands, finish } => {
                let operands: Vec<String> =
                    operands.iter().map(|operand| self.text(*operand)).collect();
                let operands = operands.join(" ∘ ");
                match finish {
                    Finish::None => format!("({operands})"),
                    Finish::DivideByRanks(ranks) => format!("({operands}) / {ranks}"),
                }
            }
        }
    }
}
