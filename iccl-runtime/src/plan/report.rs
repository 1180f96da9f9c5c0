//! The plan as rows, for `iccl plan`, `iccl perf` and JSON. The keys are documented in
//! `docs/plan.md` and only ever added to.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::PLANNER_VERSION;
use super::decide::Way;
use super::divergence::hex;
use super::islands::PlannedIsland;
use super::links::LinkDecision;
use super::planner::Plan;
use super::reason::Refusal;
use super::tier::{Access, RegionForm, Tier};

/// The version of the report's keys: grows when one is removed or changes its meaning.
pub const REPORT_SCHEMA: u32 = 1;

/// Above this many ranks the report has rows for classes of links only.
const MOST_RANKS_WITH_LINKS: usize = 32;

/// The whole plan as data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanReport {
    /// [`REPORT_SCHEMA`].
    pub schema: u32,
    /// The version of the rules by which the plan was made.
    pub planner: u32,
    /// The plan's hash, in hexadecimal.
    pub hash: String,
    /// The epoch of the evidence.
    pub epoch: u32,
    /// The number of ranks.
    pub ranks: usize,
    /// The hosts.
    pub hosts: Vec<HostRow>,
    /// The ranks that one native library could serve, and whether it does.
    pub islands: Vec<IslandRow>,
    /// How many links take each tier. A link counts once, not once in each direction.
    pub tiers: BTreeMap<Tier, u64>,
    /// The tier from each rank (row) to each rank (column); absent above 32 ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matrix: Option<Vec<Vec<Tier>>>,
    /// Every link, the lower rank sending; absent above 32 ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub links: Option<Vec<LinkRow>>,
    /// Every class of links.
    pub classes: Vec<ClassRow>,
    /// What an operator should know although it does not stop the job.
    pub warnings: Vec<String>,
}

/// A host of the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostRow {
    /// Its name.
    pub name: String,
    /// Its key, in hexadecimal: equal keys mean the same host.
    pub key: String,
    /// Its ranks.
    pub ranks: Vec<u32>,
}

/// Ranks that one native library could serve together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IslandRow {
    /// Name and version of the library.
    pub library: String,
    /// The vendor of the devices.
    pub vendor: String,
    /// The ranks.
    pub ranks: Vec<u32>,
    /// Whether the library is used.
    pub used: bool,
    /// Why it is not; null if it is.
    pub unused_because: Option<String>,
}

/// A way that a link takes or could take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WayRow {
    /// The tier.
    pub tier: Tier,
    /// The transport; null for a rank with itself.
    pub transport: Option<String>,
    /// How the sending side's buffers meet the transport.
    pub src_access: Access,
    /// How the receiving side's buffers meet the transport.
    pub dst_access: Access,
    /// In what form the sending side's device memory was registered; null if it was not.
    pub src_form: Option<RegionForm>,
    /// The same of the receiving side.
    pub dst_form: Option<RegionForm>,
    /// α in nanoseconds.
    pub alpha_ns: u64,
    /// β in bytes per microsecond.
    pub bytes_per_us: u64,
    /// Where α comes from.
    pub alpha_source: super::CostSource,
    /// Where β comes from.
    pub beta_source: super::CostSource,
}

/// A way that a link does not take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusalRow {
    /// The tier.
    pub tier: Tier,
    /// The transport; null if neither rank has one for this tier.
    pub transport: Option<String>,
    /// The stable code of the reason.
    pub reason: String,
    /// Its parameters.
    pub parameters: Vec<String>,
    /// The reason in words.
    pub text: String,
}

/// One link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LinkRow {
    /// The sending rank.
    pub src: u32,
    /// The receiving rank.
    pub dst: u32,
    /// The number of its class.
    pub class: u32,
    /// The way that it takes.
    #[serde(flatten)]
    pub chosen: WayRow,
    /// Why it takes no better tier.
    pub refused_better: Vec<RefusalRow>,
}

/// A class of links, seen on its first link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassRow {
    /// Its number.
    pub class: u32,
    /// How many links it has.
    pub links: u64,
    /// The sending rank of its first link.
    pub src: u32,
    /// The receiving rank of its first link.
    pub dst: u32,
    /// Whether its links are inside hosts.
    pub same_host: bool,
    /// The way that its links take.
    #[serde(flatten)]
    pub chosen: WayRow,
    /// The `prefer` rule that decided; null if the score did.
    pub preferred_by: Option<String>,
    /// The ways that are left when that one fails, best first.
    pub runners_up: Vec<WayRow>,
    /// Every way that was refused.
    pub refused: Vec<RefusalRow>,
    /// Why its links take no better tier.
    pub refused_better: Vec<RefusalRow>,
}

impl From<&Way> for WayRow {
    fn from(way: &Way) -> Self {
        Self {
            tier: way.tier,
            transport: way.transport.clone(),
            src_access: way.src,
            dst_access: way.dst,
            src_form: way.src_form,
            dst_form: way.dst_form,
            alpha_ns: way.cost.alpha_ns,
            bytes_per_us: way.cost.bytes_per_us,
            alpha_source: way.cost.alpha_source,
            beta_source: way.cost.beta_source,
        }
    }
}

impl RefusalRow {
    fn of(refusal: &Refusal, src: u32, dst: u32) -> Self {
        Self {
            tier: refusal.tier,
            transport: refusal.transport.clone(),
            reason: refusal.reason.code().to_owned(),
            parameters: refusal.reason.parameters(),
            text: refusal.explain(src, dst),
        }
    }

    fn all(refusals: &[Refusal], link: &LinkDecision) -> Vec<Self> {
        refusals.iter().map(|refusal| Self::of(refusal, link.src, link.dst)).collect()
    }
}

impl Plan {
    /// The plan as data.
    pub fn report(&self) -> PlanReport {
        let ranks = self.world_size() as u32;
        let mut tiers = BTreeMap::from([(Tier::SelfCopy, u64::from(ranks))]);
        let mut classes = Vec::with_capacity(self.classes.len());
        for (key, class) in &self.classes {
            let (a, b) = class.census.example;
            let Some(link) = self.link(a, b) else { continue };
            *tiers.entry(link.chosen.tier).or_insert(0) += class.census.links;
            classes.push(ClassRow {
                class: class.number,
                links: class.census.links,
                src: a,
                dst: b,
                same_host: key.same_host,
                chosen: (&link.chosen).into(),
                preferred_by: link.preferred_by.as_ref().map(ToString::to_string),
                runners_up: link.runners_up.iter().map(WayRow::from).collect(),
                refused: RefusalRow::all(&link.refused, &link),
                refused_better: RefusalRow::all(&link.refused_better(), &link),
            });
        }
        let small = self.world_size() <= MOST_RANKS_WITH_LINKS;
        let row = |a| (0..ranks).filter_map(|b| Some(self.link(a, b)?.chosen.tier)).collect();
        let pairs = || (0..ranks).flat_map(|a| (a + 1..ranks).map(move |b| (a, b)));
        let link_row = |(a, b)| {
            let link = self.link(a, b)?;
            Some(LinkRow {
                src: a,
                dst: b,
                class: link.class?,
                chosen: (&link.chosen).into(),
                refused_better: RefusalRow::all(&link.refused_better(), &link),
            })
        };
        PlanReport {
            schema: REPORT_SCHEMA,
            planner: PLANNER_VERSION,
            hash: hex(&self.hash()),
            epoch: self.epoch(),
            ranks: self.world_size(),
            hosts: self.topology().hosts().iter().map(HostRow::from).collect(),
            islands: self.islands().iter().map(IslandRow::from).collect(),
            tiers,
            matrix: small.then(|| (0..ranks).map(row).collect()),
            links: small.then(|| pairs().filter_map(link_row).collect()),
            classes,
            warnings: self.warnings().to_vec(),
        }
    }
}

impl From<&crate::topology::Host> for HostRow {
    fn from(host: &crate::topology::Host) -> Self {
        Self { name: host.name.clone(), key: host.key.to_string(), ranks: host.ranks.clone() }
    }
}

impl From<&PlannedIsland> for IslandRow {
    fn from(island: &PlannedIsland) -> Self {
        Self {
            library: island.library.clone(),
            vendor: island.vendor.clone(),
            ranks: island.ranks.clone(),
            used: island.is_used(),
            unused_because: island.why_unused(),
        }
    }
}

impl PlanReport {
    /// One line for the head of another table: `4 ranks on 2 hosts: shm 2, tcp 4`.
    pub fn summary(&self) -> String {
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        let (ranks, hosts) = (self.ranks, self.hosts.len());
        let tiers: Vec<String> = self
            .tiers
            .iter()
            .filter(|(tier, _)| **tier != Tier::SelfCopy || self.ranks == 1)
            .map(|(tier, links)| format!("{tier} {links}"))
            .collect();
        format!(
            "{ranks} rank{} on {hosts} host{}: {}",
            plural(ranks),
            plural(hosts),
            tiers.join(", ")
        )
    }

    /// The rows of the table of links (or of classes, above 32 ranks), heads first. The last column
    /// holds one line per better tier.
    pub fn table(&self) -> Vec<Vec<String>> {
        let heads = |first: &str| {
            [first, "tier", "transport", "latency", "bandwidth", "costs from", "why not better"]
                .map(ToOwned::to_owned)
                .to_vec()
        };
        let (first, rows): (_, Vec<Vec<String>>) = if let Some(links) = &self.links {
            let name = |link: &LinkRow| format!("{}-{}", link.src, link.dst);
            let rows = links.iter().map(|link| row(name(link), &link.chosen, &link.refused_better));
            ("link", rows.collect())
        } else {
            let name = |class: &ClassRow| {
                format!("{} links like {}-{}", class.links, class.src, class.dst)
            };
            let rows = self
                .classes
                .iter()
                .map(|class| row(name(class), &class.chosen, &class.refused_better));
            ("links", rows.collect())
        };
        std::iter::once(heads(first)).chain(rows).collect()
    }

    /// The rows of the matrix of tiers, heads first; empty above 32 ranks.
    pub fn matrix_table(&self) -> Vec<Vec<String>> {
        let Some(matrix) = &self.matrix else { return Vec::new() };
        let heads = (0..matrix.len()).map(|rank| rank.to_string());
        let heads = std::iter::once(String::new()).chain(heads).collect();
        let rows = matrix.iter().enumerate().map(|(rank, tiers)| {
            std::iter::once(rank.to_string()).chain(tiers.iter().map(Tier::to_string)).collect()
        });
        std::iter::once(heads).chain(rows).collect()
    }
}

fn row(name: String, way: &WayRow, refused: &[RefusalRow]) -> Vec<String> {
    let sources = if way.alpha_source == way.beta_source {
        way.alpha_source.name().to_owned()
    } else {
        format!("{}, {}", way.alpha_source.name(), way.beta_source.name())
    };
    let staged = match (way.tier, way.src_access, way.dst_access) {
        (Tier::Staged, Access::Staged, Access::Direct) => " (direct on the other side)",
        (Tier::Staged, Access::Direct, Access::Staged) => " (direct on the first side)",
        (Tier::Shm | Tier::Tcp, Access::Staged, Access::Staged) => " (staged)",
        (Tier::Shm | Tier::Tcp, Access::Staged, Access::Direct) => " (staged on the first side)",
        (Tier::Shm | Tier::Tcp, Access::Direct, Access::Staged) => " (staged on the other side)",
        _ => "",
    };
    let why: Vec<String> = refused
        .iter()
        .map(|refusal| format!("{}: {}", refusal.tier, reason_text(refusal)))
        .collect();
    vec![
        name,
        format!("{}{staged}", way.tier),
        way.transport.clone().unwrap_or_default(),
        format!("{}.{} us", way.alpha_ns / 1000, way.alpha_ns % 1000 / 100),
        format!("{} MB/s", way.bytes_per_us),
        sources,
        why.join("\n"),
    ]
}

fn reason_text(refusal: &RefusalRow) -> String {
    let parameters = if refusal.parameters.is_empty() {
        String::new()
    } else {
        format!("({})", refusal.parameters.join(", "))
    };
    format!("{}{parameters}", refusal.reason)
}

/// The whole report as plain text.
impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "plan {} (planner {}, epoch {})", &self.hash[..16], self.planner, self.epoch)?;
        writeln!(f, "{}", self.summary())?;
        for host in self.hosts.iter().take(MOST_RANKS_WITH_LINKS) {
            let ranks: crate::topology::RankSet = host.ranks.iter().copied().collect();
            writeln!(f, "host {}: {}", host.name, ranks.phrase())?;
        }
        if self.hosts.len() > MOST_RANKS_WITH_LINKS {
            writeln!(f, "and {} more hosts", self.hosts.len() - MOST_RANKS_WITH_LINKS)?;
        }
        for island in self.islands.iter().take(MOST_RANKS_WITH_LINKS) {
            let ranks: crate::topology::RankSet = island.ranks.iter().copied().collect();
            write!(f, "{}: {}", island.library, ranks.phrase())?;
            match &island.unused_because {
                Some(why) => writeln!(f, ", not used: {why}")?,
                None => writeln!(f)?,
            }
        }
        let matrix = self.matrix_table();
        if !matrix.is_empty() {
            write!(f, "\n{}", text_table(&matrix))?;
        }
        write!(f, "\n{}", text_table(&self.table()))?;
        for warning in &self.warnings {
            writeln!(f, "\nwarning: {warning}")?;
        }
        Ok(())
    }
}

/// Rows as aligned columns, two spaces apart. A cell may have several lines.
pub fn text_table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.flat_map(|cell| cell.lines()).map(|line| line.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let height = row.iter().map(|cell| cell.lines().count()).max().unwrap_or(0).max(1);
        for index in 0..height {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                let part = cell.lines().nth(index).unwrap_or("");
                line.push_str(part);
                let used = part.chars().count();
                line.extend(std::iter::repeat_n(' ', width - used + 2));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    text
}
