//! What a memory holds, told in pieces: so that long vectors are never computed element by element.

/// What a piece of memory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// What lies in memory that nobody has written.
    Nothing,
    /// What a rank contributes, from this element on.
    Contribution {
        /// Whose.
        rank: u32,
        /// The first element.
        first: u64,
    },
    /// The reduction of all ranks' contributions, from this element on.
    Reduced {
        /// The first element.
        first: u64,
    },
}

impl Content {
    /// The same from `elements` further on.
    fn further(self, elements: u64) -> Self {
        match self {
            Self::Nothing => Self::Nothing,
            Self::Contribution { rank, first } => {
                Self::Contribution { rank, first: first + elements }
            }
            Self::Reduced { first } => Self::Reduced { first: first + elements },
        }
    }
}

/// Elements `start .. start + count` and what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first element.
    pub start: u64,
    /// How many.
    pub count: u64,
    /// What they hold.
    pub content: Content,
}

/// The content of a memory of `elements` elements, piece by piece without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pieces: Vec<Piece>,
}

impl Image {
    /// Memory that nobody has written.
    pub fn nothing(elements: u64) -> Self {
        Self::of(elements, Content::Nothing)
    }

    /// Memory that holds one thing.
    pub fn of(elements: u64, content: Content) -> Self {
        Self { pieces: vec![Piece { start: 0, count: elements, content }] }
    }

    /// Its length.
    pub fn elements(&self) -> u64 {
        self.pieces.last().map_or(0, |last| last.start + last.count)
    }

    /// The pieces, in order.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The same with `content` in elements `start .. start + count`.
    ///
    /// # Panics
    /// If that reaches past the end.
    #[must_use]
    pub fn with(&self, start: u64, count: u64, content: Content) -> Self {
        if count == 0 {
            return self.clone();
        }
        let end = start + count;
        assert!(end <= self.elements(), "past the end of an image");
        let mut pieces = Vec::with_capacity(self.pieces.len() + 2);
        for piece in &self.pieces {
            let piece_end = piece.start + piece.count;
            if piece.start < start {
                let kept = piece_end.min(start) - piece.start;
                pieces.push(Piece { count: kept, ..*piece });
            }
            if piece.start <= start && start < piece_end {
                pieces.push(Piece { start, count, content });
            }
            if piece_end > end {
                let from = piece.start.max(end);
                let content = piece.content.further(from - piece.start);
                pieces.push(Piece { start: from, count: piece_end - from, content });
            }
        }
        Self { pieces }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_replaces_what_was_there_and_nothing_else() {
        let whole = Image::of(10, Content::Contribution { rank: 1, first: 0 });
        let cut = whole.with(2, 3, Content::Nothing).with(4, 3, Content::Reduced { first: 7 });
        let expected = [
            Piece { start: 0, count: 2, content: Content::Contribution { rank: 1, first: 0 } },
            Piece { start: 2, count: 2, content: Content::Nothing },
            Piece { start: 4, count: 3, content: Content::Reduced { first: 7 } },
            Piece { start: 7, count: 3, content: Content::Contribution { rank: 1, first: 7 } },
        ];
        assert_eq!(cut.pieces(), expected);
        assert_eq!(cut.elements(), 10);
        assert_eq!(whole.with(0, 10, Content::Nothing), Image::nothing(10));
    }
}
