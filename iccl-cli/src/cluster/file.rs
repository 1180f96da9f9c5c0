//! Cluster files. All that is wrong is told at once, each with file, line and column.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::path::Path;

use iccl_runtime::config::{nearest, parse_bandwidth};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Cluster, NO_LIBRARY, Nic, Node, Order, Seat, VENDORS, known};
use crate::failure::{Failure, Result};

/// No cluster file is longer.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// More than that does not run on one machine.
const MOST_CARDS: i64 = 64;
const MOST_NODES: usize = 64;
/// More lines than this help nobody.
const MAX_PROBLEMS: usize = 25;
/// The kernel's longest name of an interface.
const LONGEST_NIC_NAME: usize = 15;
const LONGEST_NODE_NAME: usize = 64;

type Value<'a> = Spanned<DeValue<'a>>;

pub(super) fn read(path: &Path) -> Result<Cluster> {
    let unreadable = |why: String| {
        Failure::usage(format!("the cluster file {} cannot be read: {why}", path.display()))
    };
    let length = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?.len();
    if length > MAX_FILE_BYTES {
        return Err(unreadable(format!("it is longer than {MAX_FILE_BYTES} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
    parse(&text, &path.display().to_string())
}

/// Reads the text of a file that messages call `name`.
fn parse(text: &str, name: &str) -> Result<Cluster> {
    let mut reader = Reader { text, name, problems: Vec::new() };
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let start = error.span().map_or(text.len(), |span| span.start);
        reader.complain(start, error.message());
    }
    let cluster = if errors.is_empty() { reader.cluster(document.get_ref()) } else { None };
    match (cluster, reader.problems.as_slice()) {
        (Some(cluster), []) => Ok(cluster),
        (_, [one]) => Err(Failure::usage(one.clone())),
        (_, problems) => {
            let mut message = format!("{} problems in the cluster file:", problems.len());
            for problem in problems.iter().take(MAX_PROBLEMS) {
                let _ = write!(message, "\n{problem}");
            }
            Err(Failure::usage(message))
        }
    }
}

/// Collects what is wrong.
struct Reader<'a> {
    text: &'a str,
    name: &'a str,
    problems: Vec<String>,
}

impl Reader<'_> {
    fn complain(&mut self, offset: usize, message: &str) {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let before = &self.text[..offset];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        let column = before[line_start..].chars().count() + 1;
        let message: String =
            message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        self.problems.push(format!("{}:{line}:{column}: {message}", self.name));
    }

    fn refuse(&mut self, key: &str, value: &Value, expected: &str) {
        let found = described(value.get_ref());
        self.complain(value.span().start, &format!("{key} = {found}: expected {expected}"));
    }

    /// The values of the keys in their order; tells which others there are.
    fn known<'t, const N: usize>(
        &mut self,
        table: &'t DeTable<'t>,
        place: &str,
        keys: [&str; N],
    ) -> [Option<&'t Value<'t>>; N] {
        for (key, _) in table {
            let name: &Cow<str> = key.get_ref();
            if keys.contains(&name.as_ref()) {
                continue;
            }
            let meant = nearest(name, keys.iter().copied()).map_or_else(
                || format!("the keys are {}", keys.join(", ")),
                |near| format!("did you mean \"{near}\"?"),
            );
            self.complain(key.span().start, &format!("unknown key \"{name}\"{place}; {meant}"));
        }
        keys.map(|wanted| {
            table.iter().find(|(key, _)| key.get_ref() == wanted).map(|(_, value)| value)
        })
    }

    fn cluster(&mut self, table: &DeTable) -> Option<Cluster> {
        let [order, node] = self.known(table, " outside of [[node]]", ["order", "node"]);
        let nodes = node.map_or(Vec::new(), |list| self.nodes(list));
        if node.is_none() {
            self.complain(0, "there is no [[node]]");
        } else if self.problems.is_empty() && nodes.is_empty() {
            self.complain(0, "a cluster has at least one [[node]]");
        }
        let Some(order) = order else { return Some(Cluster::new(nodes, Order::ByNode)) };
        match order.get_ref() {
            DeValue::String(word) => {
                let found = Order::ALL.iter().find(|(name, _)| name == word);
                if found.is_none() {
                    self.refuse("order", order, &Self::orders(word));
                }
                found.map(|(_, order)| Cluster::new(nodes, *order))
            }
            DeValue::Array(items) => {
                let all = Cluster::new(nodes, Order::ByNode);
                // Complaints about nodes would come again here.
                let seats =
                    if self.problems.is_empty() { self.seats(&all, order, items) } else { None };
                seats.map(|seats| Cluster { seats, ..all })
            }
            _ => {
                self.refuse("order", order, &Self::orders(""));
                None
            }
        }
    }

    fn orders(found: &str) -> String {
        let names = || Order::ALL.iter().map(|(name, _)| *name);
        let near = nearest(found, names())
            .map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"));
        let names: Vec<&str> = names().collect();
        format!("one of {}, or a list of \"NODE:CARD\"{near}", names.join(", "))
    }

    /// The ranks' cards as they are listed: every card once.
    fn seats(&mut self, cluster: &Cluster, whole: &Value, items: &[Value]) -> Option<Vec<Seat>> {
        let before = self.problems.len();
        let mut seats: Vec<Seat> = Vec::new();
        for item in items {
            let seat = item.get_ref().as_str().and_then(|text| {
                let (name, card) = text.rsplit_once(':')?;
                let node = cluster.nodes.iter().position(|node| node.name == name)?;
                let card = card.parse().ok().filter(|card| *card < cluster.nodes[node].cards)?;
                Some(Seat { node, card })
            });
            match seat {
                None => self.refuse("order", item, "\"NODE:CARD\", a card that the node has"),
                Some(seat) if seats.contains(&seat) => {
                    let found = described(item.get_ref());
                    let message = format!("order: {found} has a rank already");
                    self.complain(item.span().start, &message);
                }
                Some(seat) => seats.push(seat),
            }
        }
        if self.problems.len() == before
            && let Some(left) = cluster.seats.iter().find(|seat| !seats.contains(seat))
        {
            let name = &cluster.nodes[left.node].name;
            let message = format!("order: no rank for \"{name}:{}\"", left.card);
            self.complain(whole.span().start, &message);
        }
        (self.problems.len() == before).then_some(seats)
    }

    fn nodes(&mut self, list: &Value) -> Vec<Node> {
        let DeValue::Array(items) = list.get_ref() else {
            self.refuse("node", list, "tables: write [[node]] with two brackets");
            return Vec::new();
        };
        if items.len() > MOST_NODES {
            self.complain(list.span().start, &format!("more than {MOST_NODES} nodes"));
            return Vec::new();
        }
        let mut nodes: Vec<Node> = Vec::new();
        for item in items {
            let DeValue::Table(table) = item.get_ref() else {
                self.refuse("node", item, "a table");
                continue;
            };
            let Some((name_at, node)) = self.node(item, table) else { continue };
            if nodes.iter().any(|other| other.name == node.name) {
                let message = format!("node.name = \"{}\": another node has this name", node.name);
                self.complain(name_at, &message);
                continue;
            }
            nodes.push(node);
        }
        nodes
    }

    /// A node, and where its name stands.
    fn node(&mut self, item: &Value, table: &DeTable) -> Option<(usize, Node)> {
        let keys = ["name", "vendor", "cards", "nics", "sdk", "library"];
        let [name, vendor, cards, nics, sdk, library] = self.known(table, " in [[node]]", keys);
        let at = item.span().start;
        let needed = |reader: &mut Self, key: &str, value: Option<&Value>| {
            if value.is_none() {
                reader.complain(at, &format!("[[node]] lacks the key \"{key}\""));
            }
        };
        needed(self, "name", name);
        needed(self, "vendor", vendor);
        let name_at = name.map_or(at, |value| value.span().start);
        let name = name.and_then(|value| self.name("node.name", value, LONGEST_NODE_NAME));
        let vendor = vendor.and_then(|value| self.vendor(value));
        let cards = cards.map_or(Some(1), |value| self.cards(value));
        let nics = nics.map_or_else(Vec::new, |value| self.nics(value));
        let sdk = match sdk {
            None => vendor.clone(),
            Some(value) => self.name("node.sdk", value, LONGEST_NODE_NAME),
        };
        let library = match (library, &vendor) {
            (Some(value), Some(vendor)) => Some(self.library(value, vendor)?),
            _ => None,
        };
        let (name, vendor, sdk, cards) = (name?, vendor?, sdk?, cards?);
        Some((name_at, Node { name, vendor, sdk, library, cards, nics }))
    }

    fn library(&mut self, value: &Value, vendor: &str) -> Option<String> {
        let found = value.get_ref().as_str().unwrap_or_default();
        let known: Vec<String> = known::libraries(vendor).into_iter().map(|one| one.id).collect();
        let names = || known.iter().map(String::as_str).chain([NO_LIBRARY]);
        if names().any(|name| name == found) {
            return Some(found.to_owned());
        }
        let near = nearest(found, names())
            .map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"));
        let names: Vec<String> = names().map(|name| format!("\"{name}\"")).collect();
        self.refuse("node.library", value, &format!("one of {}{near}", names.join(", ")));
        None
    }

    fn name(&mut self, key: &str, value: &Value, longest: usize) -> Option<String> {
        let is_good = |text: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            (1..=longest).contains(&text.len()) && text.chars().all(plain) && !text.starts_with('.')
        };
        match value.get_ref().as_str() {
            Some(text) if is_good(text) => Some(text.to_owned()),
            _ => {
                let expected = format!("1 to {longest} letters, digits, dots, dashes, underscores");
                self.refuse(key, value, &expected);
                None
            }
        }
    }

    fn vendor(&mut self, value: &Value) -> Option<String> {
        let found = value.get_ref().as_str().unwrap_or_default();
        if VENDORS.contains(&found) {
            return Some(found.to_owned());
        }
        let near = nearest(found, VENDORS.iter().copied())
            .map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"));
        self.refuse("node.vendor", value, &format!("one of {}{near}", VENDORS.join(", ")));
        None
    }

    fn cards(&mut self, value: &Value) -> Option<u32> {
        let number = match value.get_ref() {
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        };
        let cards = number.filter(|number| (1..=MOST_CARDS).contains(number));
        if cards.is_none() {
            self.refuse("node.cards", value, &format!("a number from 1 to {MOST_CARDS}"));
        }
        cards.and_then(|cards| u32::try_from(cards).ok())
    }

    fn nics(&mut self, value: &Value) -> Vec<Nic> {
        let expected = "a list of { name = \"eth0\", speed = \"25Gbit/s\" }";
        let DeValue::Array(items) = value.get_ref() else {
            self.refuse("node.nics", value, expected);
            return Vec::new();
        };
        let mut nics: Vec<Nic> = Vec::new();
        for item in items {
            let DeValue::Table(table) = item.get_ref() else {
                self.refuse("node.nics", item, expected);
                continue;
            };
            let [name, speed] = self.known(table, " in node.nics", ["name", "speed"]);
            let (Some(name), Some(speed)) = (name, speed) else {
                self.complain(item.span().start, "a NIC has a name and a speed");
                continue;
            };
            let bytes_per_second =
                speed.get_ref().as_str().and_then(parse_bandwidth).filter(|bytes| *bytes > 0);
            if bytes_per_second.is_none() {
                let expected = "a rate such as \"25Gbit/s\", \"100Mbit/s\" or \"3GB/s\"";
                self.refuse("node.nics.speed", speed, expected);
            }
            let at = name.span().start;
            let name = self.name("node.nics.name", name, LONGEST_NIC_NAME);
            let (Some(name), Some(bytes_per_second)) = (name, bytes_per_second) else { continue };
            if name == "lo" || nics.iter().any(|nic| nic.name == name) {
                self.complain(at, &format!("node.nics.name = \"{name}\": the name is taken"));
                continue;
            }
            nics.push(Nic { name, bytes_per_second });
        }
        nics
    }
}

fn described(value: &DeValue) -> String {
    match value {
        DeValue::String(text) => format!("\"{text}\""),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(is_so) => is_so.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(items) => format!("a list of {}", items.len()),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let failure = parse(text, "c.toml").expect_err("something is wrong");
        let lines = failure.message().lines().map(str::to_owned);
        lines.filter(|line| line.starts_with("c.toml:")).collect()
    }

    const GOOD: &str = r#"
order = ["b:0", "a:1", "a:0"]
[[node]]
name = "a"
vendor = "nvidia"
cards = 2
nics = [{ name = "eth0", speed = "25Gbit/s" }]
[[node]]
name = "b"
vendor = "kunlun"
sdk = "kunlun-p800"
"#;

    #[test]
    fn a_cluster_is_read() {
        let cluster = parse(GOOD, "c.toml").expect("right");
        assert_eq!(cluster.summary(), "2 nodes, 3 ranks: a 2 nvidia, b 1 kunlun");
        let seats: Vec<_> = cluster.seats.iter().map(|seat| (seat.node, seat.card)).collect();
        assert_eq!(seats, [(1, 0), (0, 1), (0, 0)]);
        assert_eq!(cluster.nodes[0].nics[0].bytes_per_second, 3_125_000_000);
        assert_eq!(
            (cluster.nodes[0].sdk.as_str(), cluster.nodes[1].sdk.as_str()),
            ("nvidia", "kunlun-p800")
        );
    }

    #[test]
    fn every_slip_is_told_with_its_place_and_what_was_meant() {
        let text = "ordr = \"by-node\"\n[[node]]\nname = \"a\"\nvender = \"nvidia\"\n[[node]]\nname = \
                    \"a b\"\nvendor = \"nvida\"\ncards = 0\nnics = [{ name = \"eth0\", speed = \"25\" }]\n";
        assert_eq!(
            problems(text),
            [
                "c.toml:1:1: unknown key \"ordr\" outside of [[node]]; did you mean \"order\"?",
                "c.toml:4:1: unknown key \"vender\" in [[node]]; did you mean \"vendor\"?",
                "c.toml:2:1: [[node]] lacks the key \"vendor\"",
                "c.toml:6:8: node.name = \"a b\": expected 1 to 64 letters, digits, dots, dashes, underscores",
                "c.toml:7:10: node.vendor = \"nvida\": expected one of host, nvidia, ascend, cambricon, \
                 kunlun; did you mean \"nvidia\"?",
                "c.toml:8:9: node.cards = 0: expected a number from 1 to 64",
                "c.toml:9:34: node.nics.speed = \"25\": expected a rate such as \"25Gbit/s\", \"100Mbit/s\" \
                 or \"3GB/s\"",
            ]
        );
    }

    #[test]
    fn orders_and_names_have_to_be_whole() {
        let with = |order: &str| {
            format!("order = {order}\n[[node]]\nname = \"a\"\nvendor = \"host\"\ncards = 2\n")
        };
        let first = |order: &str| problems(&with(order))[0].clone();
        assert!(first("\"interleavd\"").ends_with("did you mean \"interleaved\"?"));
        assert_eq!(first("[\"a:0\"]"), "c.toml:1:9: order: no rank for \"a:1\"");
        assert_eq!(first("[\"a:0\", \"a:0\"]"), "c.toml:1:17: order: \"a:0\" has a rank already");
        assert!(first("[\"a:2\"]").contains("a card that the node has"));
        assert!(first("[\"b:0\"]").contains("a card that the node has"));
        assert!(first("7").contains("expected one of by-node"));
        let twice = "[[node]]\nname = \"a\"\nvendor = \"host\"\n".repeat(2);
        assert_eq!(problems(&twice), ["c.toml:5:8: node.name = \"a\": another node has this name"]);
        assert_eq!(problems(""), ["c.toml:1:1: there is no [[node]]"]);
        assert_eq!(problems("node = []"), ["c.toml:1:1: a cluster has at least one [[node]]"]);
        assert!(problems("[node]\nname = \"a\"")[0].contains("write [[node]]"));
        assert!(problems("[[node]\n")[0].starts_with("c.toml:1:"));
    }
}
