//! HCCL, opened: what it can do, root infos, groups.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;

use iccl_plugin_api::sdk::{CollectivesFacts, NativeCollectives, PluginError, PluginResult};
use iccl_vendor_support::plan::Repertoire;
use iccl_vendor_support::{Library, Search, open, table};

use crate::acl::Acl;
use crate::communicator::{HcclCommunicator, Joined};
use crate::device::Card;
use crate::support::{FLAGS, Product, repertoire, support};
use crate::{AscendPlugin, calls, libraries, sys};

/// HCCL and what is known of it.
#[derive(Debug)]
pub(crate) struct Hccl {
    pub(crate) table: sys::Hccl,
    /// What it is planned for.
    pub(crate) repertoire: Repertoire,
    /// `HCCL of CANN 9.0.0 on A2`: ranks of others are not of the same island.
    name: &'static str,
}

impl Hccl {
    /// Opens the library.
    ///
    /// # Errors
    /// `LibraryMissing`, with what is missing; `NotSupported` for cards and versions of which nobody
    /// here knows what HCCL does on them.
    pub(crate) fn open(search: &Search, acl: &Acl) -> PluginResult<Self> {
        let (table, _): (sys::Hccl, PathBuf) = open(libraries::HCCL, search, |hccl| {
            // SAFETY: the signatures are those of the headers of these versions.
            let alone = unsafe { sys::Hccl::resolve(hccl) };
            if alone.is_ok() {
                return table(hccl, alone);
            }
            // From CANN 9 on, communicators have a library of their own.
            let both = open(libraries::HCOMM, search, |hcomm: &Library| {
                let find = |name: &'static str| hccl.symbol(name).or_else(|| hcomm.symbol(name));
                // SAFETY: as above.
                table(hccl, unsafe { sys::Hccl::resolve_by(find) })
            });
            match both {
                Ok((table, _)) => Ok(table),
                Err(error) => {
                    tracing::debug!(%error, "no library with HCCL's communicators");
                    table(hccl, alone)
                }
            }
        })?;
        let (chip, (major, minor)) = (acl.chip, acl.version);
        let unknown = |what: &str| PluginError::not_supported(format!("HCCL is not used {what}"));
        let product = Product::of(chip).ok_or_else(|| {
            unknown(&format!("on the chip {chip}, of which its support is not known"))
        })?;
        let support = support(product, acl.version);
        if support.is_empty() {
            let product = product.name();
            return Err(unknown(&format!(
                "on {product} with ACL {major}.{minor}, of which its support is not known"
            )));
        }
        let name = format!("HCCL of {} on {}", acl.cann, product.name()).leak();
        Ok(Self { table, repertoire: repertoire(product, support.leak()), name })
    }
}

/// Messages of one communicator on one stream.
struct Messages {
    joined: Arc<Joined>,
    stream: sys::Stream,
    items: Vec<sys::SendRecvItem>,
}

/// A group of calls of this thread.
#[derive(Default)]
struct Group {
    depth: u32,
    messages: Vec<Messages>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// Keeps messages for the end of this thread's group. Without a group, gives them back.
pub(crate) fn keep_for_group(
    joined: &Arc<Joined>,
    stream: sys::Stream,
    items: Vec<sys::SendRecvItem>,
) -> Vec<sys::SendRecvItem> {
    GROUP.with_borrow_mut(|group| {
        if group.depth == 0 || items.is_empty() {
            return items;
        }
        let same = |one: &&mut Messages| one.stream == stream && Arc::ptr_eq(&one.joined, joined);
        match group.messages.iter_mut().find(same) {
            Some(messages) => messages.items.extend(items),
            None => group.messages.push(Messages { joined: Arc::clone(joined), stream, items }),
        }
        Vec::new()
    })
}

fn begin_group() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// Ends a group. The end of the outermost issues its messages.
fn end_group() -> PluginResult<()> {
    let messages = GROUP.with_borrow_mut(|group| {
        group.depth = group.depth.checked_sub(1)?;
        Some(if group.depth == 0 { std::mem::take(&mut group.messages) } else { Vec::new() })
    });
    let messages = messages
        .ok_or_else(|| PluginError::invalid("a group ends that this thread did not begin"))?;
    let mut ended = Ok(());
    for Messages { joined, stream, items } in messages {
        let issue = || {
            let _current = joined.context.enter()?;
            // SAFETY: whoever called in the group promised the buffers until the stream is past them.
            let issued = unsafe { calls::exchange(&joined, &items, stream) };
            // What came before a failure is under way.
            issued.and(joined.record(stream))
        };
        ended = ended.and(issue());
    }
    ended
}

impl AscendPlugin {
    /// HCCL, or why there is none.
    fn hccl(&self) -> PluginResult<&Arc<Hccl>> {
        self.hccl.as_ref().map_err(Clone::clone)
    }
}

impl NativeCollectives for AscendPlugin {
    type Backend = Self;
    type Communicator = HcclCommunicator;

    fn facts(&self) -> PluginResult<CollectivesFacts> {
        let (support, library) = match &self.hccl {
            Ok(hccl) => (hccl.repertoire.support, hccl.name),
            // The cards are of use without it: iccl's own schedules do everything.
            Err(_) => (&[][..], "no HCCL"),
        };
        Ok(CollectivesFacts {
            unique_id_bytes: sys::ROOT_INFO_BYTES as u64,
            support,
            flags: FLAGS,
            library,
        })
    }

    /// HCCL opens a socket for a card; any card of the process does.
    fn unique_id(&self) -> PluginResult<Vec<u8>> {
        let hccl = self.hccl()?;
        let context = self.any_context()?;
        let _current = context.enter()?;
        let mut root = sys::RootInfo { internal: [0; sys::ROOT_INFO_BYTES] };
        // SAFETY: there is room for the structure.
        let answer = unsafe { (hccl.table.HcclGetRootInfo)(&raw mut root) };
        hccl.table.check("HcclGetRootInfo", answer)?;
        Ok(root.internal.to_vec())
    }

    fn join(
        &self,
        device: &Card,
        unique_id: &[u8],
        ranks: u32,
        rank: u32,
    ) -> PluginResult<HcclCommunicator> {
        HcclCommunicator::join(self.hccl()?, device, unique_id, (ranks, rank))
    }

    fn group_start(&self) -> PluginResult<()> {
        self.hccl()?;
        begin_group();
        Ok(())
    }

    fn group_end(&self) -> PluginResult<()> {
        self.hccl()?;
        end_group()
    }
}
