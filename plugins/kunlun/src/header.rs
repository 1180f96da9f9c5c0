//! Numbers out of a header of C or C++: enumerators, constants, and the length of one structure.
//!
//! It understands what such headers are written in, and refuses the rest by name: what stands behind a
//! condition inside an enumeration, or is defined twice with different values, has no value here.

use std::collections::BTreeMap;

/// A piece of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Number(i64),
    Sign(char),
    /// `<<` or `>>`.
    Shift(bool),
    /// A line for the preprocessor that is no definition of a value.
    Directive,
    /// A value that is defined, as it is written.
    Define(String, Vec<Token>),
}

/// What a header says.
#[derive(Debug, Default)]
pub(crate) struct Header {
    values: BTreeMap<String, Result<i64, String>>,
    tokens: Vec<Token>,
}

impl Header {
    /// Reads a text.
    pub(crate) fn read(text: &str) -> Self {
        let mut header = Self { values: BTreeMap::new(), tokens: tokens(&without_comments(text)) };
        let all = std::mem::take(&mut header.tokens);
        let mut rest = &all[..];
        while let [first, after @ ..] = rest {
            rest = match first {
                Token::Define(name, value) => {
                    if let Some(value) = header.evaluate(value) {
                        header.set(name, Ok(value));
                    }
                    after
                }
                Token::Word(word) if word == "enum" => header.enumeration(after),
                Token::Word(word) if word == "constexpr" || word == "const" => {
                    header.constant(after);
                    after
                }
                _ => after,
            };
        }
        header.tokens = all;
        header
    }

    /// The value of a name.
    ///
    /// # Errors
    /// Why it has none.
    pub(crate) fn value(&self, name: &str) -> Result<i64, String> {
        self.values.get(name).cloned().unwrap_or_else(|| Err(format!("it does not say {name}")))
    }

    fn set(&mut self, name: &str, value: Result<i64, String>) {
        let value = match self.values.get(name) {
            Some(known) if *known != value => {
                Err(format!("it says {name} twice, with different values"))
            }
            _ => value,
        };
        self.values.insert(name.to_owned(), value);
    }

    /// `const … NAME = value;`, if the value is understood.
    fn constant(&mut self, tokens: &[Token]) {
        let end = tokens.iter().position(|token| *token == Token::Sign(';')).unwrap_or(0);
        if let Some(at) = tokens[..end].iter().position(|token| *token == Token::Sign('='))
            && let Some(Token::Word(name)) = at.checked_sub(1).map(|at| &tokens[at])
            && let Some(value) = self.evaluate(&tokens[at + 1..end])
        {
            self.set(name, Ok(value));
        }
    }

    /// `enum [class] [Name] [: type] { A, B = 2 };`; gives what comes after it.
    fn enumeration<'a>(&mut self, tokens: &'a [Token]) -> &'a [Token] {
        let is_end = |token: &Token| matches!(token, Token::Sign('{' | ';' | ')' | ','));
        let Some(open) = tokens.iter().position(is_end) else { return &[] };
        let body = &tokens[open + 1..];
        if tokens[open] != Token::Sign('{') {
            return body;
        }
        let close = body.iter().position(|token| *token == Token::Sign('}'));
        let close = close.unwrap_or(body.len());
        let has_condition = body[..close].contains(&Token::Directive);
        // The value of the next one, or why it is not known.
        let mut next: Result<i64, String> = Ok(0);
        for entry in body[..close].split(|token| *token == Token::Sign(',')) {
            let entry: Vec<Token> =
                entry.iter().filter(|token| **token != Token::Directive).cloned().collect();
            let [Token::Word(name), value @ ..] = &entry[..] else { continue };
            let value = match value {
                [] => next,
                [Token::Sign('='), value @ ..] => {
                    let known = self.evaluate(value);
                    known.ok_or_else(|| format!("the value of {name} is not understood"))
                }
                _ => Err(format!("{name} is not understood")),
            };
            next = value.as_ref().map(|value| value + 1).map_err(Clone::clone);
            let conditional = || Err(format!("{name} stands in an enumeration with conditions"));
            self.set(name, if has_condition { conditional() } else { value });
        }
        body.get(close + 1..).unwrap_or_default()
    }

    /// The length in bytes of a structure of arrays of bytes.
    ///
    /// # Errors
    /// What is not understood.
    pub(crate) fn bytes_of(&self, structure: &str) -> Result<usize, String> {
        let is_word = |token: &Token, word: &str| matches!(token, Token::Word(is) if is == word);
        let mut found: Vec<usize> = Vec::new();
        for (at, token) in self.tokens.iter().enumerate() {
            let rest = &self.tokens[at + 1..];
            let brace = rest.iter().take(2).position(|token| *token == Token::Sign('{'));
            let (true, Some(brace)) = (is_word(token, "struct"), brace) else { continue };
            let body = &rest[brace + 1..];
            let Some(close) = body.iter().position(|token| *token == Token::Sign('}')) else {
                continue;
            };
            let tag = rest[..brace].first();
            let after = body.get(close + 1);
            if tag.is_some_and(|tag| is_word(tag, structure))
                || after.is_some_and(|after| is_word(after, structure))
            {
                found.push(self.members(structure, &body[..close])?);
            }
        }
        match found[..] {
            [bytes] => Ok(bytes),
            [] => Err(format!("it does not say what {structure} is")),
            _ => Err(format!("it says several times what {structure} is")),
        }
    }

    fn members(&self, structure: &str, body: &[Token]) -> Result<usize, String> {
        let refused = || format!("the members of {structure} are not understood");
        let mut bytes = 0_usize;
        for member in body.split(|token| *token == Token::Sign(';')) {
            let Some(open) = member.iter().position(|token| *token == Token::Sign('[')) else {
                if !member.is_empty() {
                    return Err(refused());
                }
                continue;
            };
            let words: Vec<&str> = member[..open]
                .iter()
                .map(|token| if let Token::Word(word) = token { word.as_str() } else { "" })
                .collect();
            let is_bytes = matches!(
                words[..],
                ["char" | "uint8_t" | "int8_t", _] | ["unsigned" | "signed", "char", _]
            );
            let [inside @ .., Token::Sign(']')] = &member[open + 1..] else {
                return Err(refused());
            };
            let length = self.evaluate(inside).and_then(|length| usize::try_from(length).ok());
            bytes += length.filter(|_| is_bytes).ok_or_else(refused)?;
        }
        Ok(bytes)
    }

    /// The value of an expression, if all of it is understood.
    fn evaluate(&self, tokens: &[Token]) -> Option<i64> {
        let mut expression = Expression { header: self, tokens, at: 0 };
        let value = expression.binary(0)?;
        (expression.at == tokens.len()).then_some(value)
    }
}

/// An expression on its way.
struct Expression<'a> {
    header: &'a Header,
    tokens: &'a [Token],
    at: usize,
}

impl Expression<'_> {
    /// Operators of a level: `|`, then shifts, then sums, then products.
    fn binary(&mut self, level: usize) -> Option<i64> {
        if level == 4 {
            return self.unary();
        }
        let mut left = self.binary(level + 1)?;
        while let Some(operator) = self.tokens.get(self.at) {
            let apply: fn(i64, i64) -> Option<i64> = match (level, operator) {
                (0, Token::Sign('|')) => |left, right| Some(left | right),
                (1, Token::Shift(true)) => |left, right| left.checked_shl(right.try_into().ok()?),
                (1, Token::Shift(false)) => |left, right| left.checked_shr(right.try_into().ok()?),
                (2, Token::Sign('+')) => i64::checked_add,
                (2, Token::Sign('-')) => i64::checked_sub,
                (3, Token::Sign('*')) => i64::checked_mul,
                (3, Token::Sign('/')) => i64::checked_div,
                _ => break,
            };
            self.at += 1;
            left = apply(left, self.binary(level + 1)?)?;
        }
        Some(left)
    }

    fn unary(&mut self) -> Option<i64> {
        let token = self.tokens.get(self.at)?;
        self.at += 1;
        match token {
            Token::Number(value) => Some(*value),
            Token::Word(name) => self.header.value(name).ok(),
            Token::Sign('-') => self.unary()?.checked_neg(),
            Token::Sign('(') => {
                let value = self.binary(0)?;
                let is_closed = self.tokens.get(self.at) == Some(&Token::Sign(')'));
                self.at += 1;
                is_closed.then_some(value)
            }
            _ => None,
        }
    }
}

/// The text with a blank for each comment, and lines that are continued joined.
fn without_comments(text: &str) -> String {
    let text = text.replace("\\\r\n", " ").replace("\\\n", " ");
    let mut left = String::with_capacity(text.len());
    let mut rest = &text[..];
    while let Some(at) = rest.find('/') {
        left.push_str(&rest[..at]);
        let comment = &rest[at..];
        rest = if comment.starts_with("//") {
            comment.find('\n').map_or("", |end| &comment[end..])
        } else if comment.starts_with("/*") {
            left.push(' ');
            comment.find("*/").map_or("", |end| &comment[end + 2..])
        } else {
            left.push('/');
            &comment[1..]
        };
    }
    left + rest
}

fn tokens(text: &str) -> Vec<Token> {
    let mut all = Vec::new();
    for line in text.lines() {
        let Some(directive) = line.trim_start().strip_prefix('#') else {
            all.extend(words(line));
            continue;
        };
        let definition = directive.trim_start().strip_prefix("define").map(str::trim_start);
        let name_ends = |text: &str| text.find(|one: char| !one.is_alphanumeric() && one != '_');
        let defined = definition.map(|text| text.split_at(name_ends(text).unwrap_or(text.len())));
        match defined {
            Some((name, value)) if !name.is_empty() && !value.starts_with('(') => {
                all.push(Token::Define(name.to_owned(), words(value)));
            }
            _ => all.push(Token::Directive),
        }
    }
    all
}

fn words(text: &str) -> Vec<Token> {
    let mut all = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |one: char| one.is_alphanumeric() || one == '_';
        let length = if is_word(first) {
            rest.find(|one| !is_word(one)).unwrap_or(rest.len())
        } else if rest.starts_with("<<") || rest.starts_with(">>") {
            2
        } else {
            first.len_utf8()
        };
        let (word, after) = rest.split_at(length);
        all.push(match word {
            "<<" => Token::Shift(true),
            ">>" => Token::Shift(false),
            _ if first.is_ascii_digit() => {
                number(word).map_or_else(|| Token::Word(word.to_owned()), Token::Number)
            }
            _ if is_word(first) => Token::Word(word.to_owned()),
            _ => Token::Sign(first),
        });
        rest = after.trim_start();
    }
    all
}

/// A number as C writes it.
fn number(word: &str) -> Option<i64> {
    let word = word.to_ascii_lowercase();
    if let Some(digits) = word.strip_prefix("0x") {
        return i64::from_str_radix(digits.trim_end_matches(['u', 'l']), 16).ok();
    }
    let digits = word.trim_end_matches(['u', 'l']);
    match digits.strip_prefix('0') {
        Some(octal) if !octal.is_empty() => i64::from_str_radix(octal, 8).ok(),
        _ => digits.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enumerators_go_on_from_the_one_before() {
        let header = Header::read(
            "enum First { A, B = 7, /* C = 3, */ C, // D\n D = B + 0x10, E };\n\
             typedef enum : unsigned { F = -2, G, H = (1 << 3) | 1, } Second;\n\
             enum class Third;\nvoid f(enum First x, int y);\nenum { I = 010 };",
        );
        let values: Vec<i64> = ["A", "B", "C", "D", "E", "F", "G", "H", "I"]
            .map(|name| header.value(name).unwrap())
            .into();
        assert_eq!(values, [0, 7, 8, 23, 24, -2, -1, 9, 8]);
        assert_eq!(header.value("Z"), Err("it does not say Z".to_owned()));
    }

    #[test]
    fn constants_of_every_kind_have_values() {
        let header = Header::read(
            "#define ONE 1UL\n#define TWO \\\n (ONE * 2)\n#define CALL(x) x\n#define TEXT \"a\"\n\
             static constexpr int THREE = TWO + 1;\nconst int FOUR = sizeof(int);\n",
        );
        assert_eq!(header.value("TWO"), Ok(2));
        assert_eq!(header.value("THREE"), Ok(3));
        for unknown in ["CALL", "TEXT", "FOUR"] {
            assert!(header.value(unknown).is_err(), "{unknown}");
        }
    }

    #[test]
    fn what_is_conditional_or_contradicts_itself_has_no_value() {
        let header = Header::read(
            "enum { A,\n#ifdef NEW\n B,\n#endif\n C };\nenum { D, E = sizeof(x), F };",
        );
        let why = header.value("C").unwrap_err();
        assert!(why.contains("an enumeration with conditions"), "{why}");
        assert_eq!(header.value("D"), Ok(0));
        let why = header.value("F").unwrap_err();
        assert!(why.contains("the value of E is not understood"), "{why}");
        let twice = Header::read("#if 0\nenum { A };\n#else\nenum { A = 1 };\n#endif\n");
        let why = twice.value("A").unwrap_err();
        assert_eq!(why, "it says A twice, with different values");
        assert_eq!(Header::read("enum { A };\nenum { A };").value("A"), Ok(0));
    }

    #[test]
    fn a_structure_of_bytes_has_a_length() {
        let length = |text: &str| Header::read(text).bytes_of("Id");
        assert_eq!(length("#define N 64\nstruct Id { char a[N * 2]; };"), Ok(128));
        assert_eq!(length("typedef struct { unsigned char a[3]; uint8_t b[4]; } Id;"), Ok(7));
        assert_eq!(length("typedef struct Tag { char a[5]; } Id;\nstruct Id;"), Ok(5));
        for wrong in
            ["struct Id { int a[4]; };", "struct Id { char a[N]; };", "struct Id { char a; };"]
        {
            assert!(length(wrong).unwrap_err().contains("are not understood"), "{wrong}");
        }
        assert!(length("struct Other { char a[4]; };").is_err());
        assert!(length("struct Id { char a[4]; }; struct Id { char a[4]; };").is_err());
    }
}
