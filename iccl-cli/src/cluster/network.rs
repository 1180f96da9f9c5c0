//! A network namespace for each node and one for the switch between them.
//!
//! The namespaces have no names: each is held by a process of its own, and is gone with the last process
//! in it. The holders end when this process does, however it ends, and so do the ranks, so that the
//! kernel takes down namespaces, bridges and links on every way out.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use clap::Args;
use rustix::process::{Signal, geteuid, set_parent_process_death_signal};

use super::{Nic, Node};
use crate::failure::{Failure, Outcome, Result};
use crate::run::rank;

/// The hidden subcommand that holds a namespace.
pub(crate) const HOLDER: &str = "node-of-run";

const TOOLS: [&str; 3] = ["unshare", "ip", "tc"];

/// What a holder says when its namespace is there.
const READY: &[u8] = b"r";

/// The subnet of the first NIC of every node is 10.77.0.0/24, that of the second 10.77.1.0/24, …
/// They exist in these namespaces only.
const SUBNET: &str = "10.77";

/// The network of a cluster.
#[derive(Debug)]
pub(crate) struct Network {
    nodes: Vec<Holder>,
    _switch: Holder,
}

impl Network {
    pub(super) fn new(nodes: &[Node]) -> Result<Self> {
        check_rights()?;
        if let Some(node) = nodes.iter().find(|node| node.nics.is_empty()) {
            return Err(Failure::usage(format!("--netns: node {} has no nics", node.name))
                .with_hint("give it nics = [{ name = \"eth0\", speed = \"25Gbit/s\" }]"));
        }
        let switch = Holder::start()?;
        let holders: Vec<Holder> = nodes.iter().map(|_| Holder::start()).collect::<Result<_>>()?;
        let pids: Vec<u32> = holders.iter().map(|holder| holder.0.id()).collect();
        let (links, shapes) = switch_commands(nodes, &pids);
        switch.batch("ip", &links)?;
        switch.batch("tc", &shapes)?;
        for (number, (node, holder)) in nodes.iter().zip(&holders).enumerate() {
            let (links, shapes) = node_commands(node, number);
            holder.batch("ip", &links)?;
            holder.batch("tc", &shapes)?;
        }
        Ok(Self { nodes: holders, _switch: switch })
    }

    /// The namespace of a node, as a file.
    pub(super) fn namespace(&self, node: usize) -> PathBuf {
        self.nodes[node].namespace()
    }
}

fn check_rights() -> Result<()> {
    if !geteuid().is_root() {
        return Err(Failure::usage("--netns: only root may make network namespaces")
            .with_hint("leave --netns out; the nodes then share this machine's loopback"));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let missing: Vec<&str> = TOOLS
        .into_iter()
        .filter(|tool| !folders.iter().any(|folder| folder.join(tool).exists()))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::usage(format!("--netns needs {}, which PATH does not have", missing.join(", ")))
        .with_hint("Debian: apt-get install iproute2 util-linux"))
}

/// What the switch does: a bridge for the first NICs of all nodes, one for the second, …
fn switch_commands(nodes: &[Node], pids: &[u32]) -> (String, String) {
    let (mut links, mut shapes) = (String::new(), String::new());
    let bridges = nodes.iter().map(|node| node.nics.len()).max().unwrap_or(0);
    for bridge in 0..bridges {
        let _ = write!(
            links,
            "link add br{bridge} type bridge\nlink set br{bridge} addrgenmode none\nlink set br{bridge} up\n"
        );
    }
    for (number, (node, pid)) in nodes.iter().zip(pids).enumerate() {
        for (bridge, nic) in node.nics.iter().enumerate() {
            let port = format!("p{number}n{bridge}");
            let _ = write!(
                links,
                "link add {port} type veth peer name {} netns {pid}\n\
                 link set {port} addrgenmode none master br{bridge}\nlink set {port} up\n",
                nic.name
            );
            let _ = writeln!(shapes, "{}", shape(&port, nic));
        }
    }
    (links, shapes)
}

/// What a node does with its ends of the links.
fn node_commands(node: &Node, number: usize) -> (String, String) {
    let (mut links, mut shapes) = ("link set lo up\n".to_owned(), String::new());
    for (bridge, nic) in node.nics.iter().enumerate() {
        let (name, host) = (&nic.name, number + 1);
        let _ = write!(
            links,
            "link set {name} addrgenmode none\naddress add {SUBNET}.{bridge}.{host}/24 dev {name}\n\
             link set {name} up\n"
        );
        let _ = writeln!(shapes, "{}", shape(name, nic));
    }
    (links, shapes)
}

/// Limits what leaves by an interface. Both ends of a link have one, so that both directions are shaped.
fn shape(interface: &str, nic: &Nic) -> String {
    // What may go at once: two milliseconds' worth, and no less than the largest piece that the kernel
    // hands down undivided.
    let burst = (nic.bytes_per_second / 500).clamp(128 * 1024, 32 * 1024 * 1024);
    let bits = nic.bytes_per_second * 8;
    format!("qdisc add dev {interface} root tbf rate {bits}bit burst {burst} latency 50ms")
}

/// The process that holds a namespace.
#[derive(Debug)]
struct Holder(Child);

impl Holder {
    fn start() -> Result<Self> {
        let own = std::process::id();
        let failed = |error: std::io::Error| {
            Failure::new(format!("--netns: a network namespace cannot be made: {error}"))
        };
        let child = Command::new("unshare")
            .args(["--net", "--", &format!("/proc/{own}/exe"), HOLDER, &own.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A signal of the terminal is for this process, which hands it on to the ranks.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let mut holder = Self(child);
        let mut said = [0];
        let heard = holder.0.stdout.as_mut().map(|out| out.read_exact(&mut said));
        if !matches!(heard, Some(Ok(()))) || said != *READY {
            let mut why = String::new();
            if let Some(words) = &mut holder.0.stderr {
                let _ = words.read_to_string(&mut why);
            }
            let message = format!("--netns: a network namespace cannot be made: {}", why.trim());
            return Err(Failure::new(message));
        }
        Ok(holder)
    }

    fn namespace(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.0.id()).into()
    }

    /// Runs the lines of a batch of `ip` or `tc` in the namespace.
    fn batch(&self, tool: &str, lines: &str) -> Result<()> {
        let failed = |why: &str| Failure::new(format!("--netns: {tool}: {}", why.trim()));
        let mut child = Command::new("/proc/self/exe")
            .args([rank::NAME, &std::process::id().to_string(), "--network"])
            .arg(self.namespace())
            .args(["--", tool, "-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| failed(&error.to_string()))?;
        if let Some(mut input) = child.stdin.take() {
            // If it has ended already, its status and words tell why.
            let _ = input.write_all(lines.as_bytes());
        }
        let output = child.wait_with_output().map_err(|error| failed(&error.to_string()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(failed(&String::from_utf8_lossy(&output.stderr)))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[derive(Args)]
pub(crate) struct HolderArguments {
    /// The process id of the process that needs the namespace.
    parent: i32,
}

/// Holds the namespace in which it was started until `parent` is gone.
pub(crate) fn hold(arguments: &HolderArguments) -> Result {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Failure::new(format!("the holder cannot be tied to iccl: {error}")))?;
    rank::check_parent(arguments.parent)?;
    let gone = |error: std::io::Error| Failure::new(format!("iccl is gone: {error}"));
    let mut out = std::io::stdout();
    out.write_all(READY).and_then(|()| out.flush()).map_err(gone)?;
    // The other end is never written to; it closes with the process that has it.
    let mut nothing = Vec::new();
    std::io::stdin().read_to_end(&mut nothing).map_err(gone)?;
    Ok(Outcome::Right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_shaped_at_both_ends() {
        let nic = Nic { name: "eth0".to_owned(), bytes_per_second: 12_500_000 };
        let node = Node {
            name: "a".to_owned(),
            vendor: "host".to_owned(),
            sdk: "host".to_owned(),
            library: None,
            cards: 1,
            nics: vec![nic],
        };
        let (links, shapes) = switch_commands(&[node.clone(), node.clone()], &[7, 8]);
        assert!(links.contains("link add p1n0 type veth peer name eth0 netns 8\n"), "{links}");
        assert_eq!(
            shapes.lines().next(),
            Some("qdisc add dev p0n0 root tbf rate 100000000bit burst 131072 latency 50ms")
        );
        let (links, shapes) = node_commands(&node, 1);
        assert!(links.contains("address add 10.77.0.2/24 dev eth0\n"), "{links}");
        assert_eq!(shapes.lines().count(), 1);
    }
}
