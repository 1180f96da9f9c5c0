//! How a communicator comes to be: meet, tell each other what there is, plan, try, agree, start.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use iccl_plugin_api::sdk::DomainRequest;

use super::algorithms::Algorithms;
use super::attach::{self, Attached, Attempt, attach, progress};
use super::communicator::{Communicator, CommunicatorParts};
use super::control::Control;
use super::describe::describe;
use super::native::{self, Joined};
use super::runtime::RuntimeInner;
use super::split::Family;
use crate::bootstrap::{Bootstrap, InterfaceChoice, JoinOptions, Notice, Rendezvous};
use crate::config::OnDegrade;
use crate::engine::PluginDomain;
use crate::engine::domain::Domain;
use crate::engine::{Engine, EngineOptions, EngineParts, FlightFolder, Link};
use crate::plan::{
    Divergence, Evidence, InputDigests, PLANNER_VERSION, Plan, PlanConfig, PlannedIsland, RankFact,
    RankInputs, diff, plan,
};
use crate::topology::{HostIdentity, RankDescriptor};
use crate::{Error, ErrorKind, Result};

const DESCRIPTORS_TAG: u32 = u32::from_le_bytes(*b"rank");
const INPUTS_TAG: u32 = u32::from_le_bytes(*b"inpt");
const NATIVE_TAG: u32 = u32::from_le_bytes(*b"natv");
const EVIDENCE_TAG: u32 = u32::from_le_bytes(*b"evid");

/// How long to let the transports alone while ranks exchange what they know.
const SHORTEST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(2);

/// How long the news of a lost rank may take.
pub(super) const NEWS: Duration = Duration::from_millis(700);

/// The open transports.
type Domains = Vec<Box<dyn Domain>>;

/// Who joins, and where the others are met.
pub(super) struct Joining {
    pub(super) rendezvous: Rendezvous,
    pub(super) rank: u32,
    pub(super) ranks: u32,
    pub(super) is_one_host: bool,
    /// Set from another thread to give up.
    pub(super) cancel: Arc<AtomicBool>,
    /// The members' ranks in the communicator that the new one is made out of; empty if there is none.
    pub(super) parent_ranks: Vec<u32>,
}

/// Makes a communicator. Where it is made out of another, errors name ranks of that one.
pub(super) fn initialise(runtime: &Arc<RuntimeInner>, joining: &Joining) -> Result<Communicator> {
    let initialisation = Initialisation::begin(runtime, joining)?;
    let made = match initialisation.agree() {
        Ok(agreed) => initialisation.start(agreed),
        Err(error) => {
            let error = initialisation.true_cause(error);
            initialisation.tell(&error);
            Err(error)
        }
    };
    made.map_err(|error| joining.rendezvous.in_old_ranks(error))
}

/// What all ranks have agreed on, and what this one opened for it.
struct Agreed {
    plan: Plan,
    algorithms: Algorithms,
    descriptors: Vec<RankDescriptor>,
    domains: Domains,
    attached: Attached,
    native: Option<Joined>,
}

/// What is known between the steps.
struct Initialisation<'a> {
    runtime: &'a Arc<RuntimeInner>,
    joining: &'a Joining,
    bootstrap: Bootstrap,
    id: u64,
    deadline: Instant,
    settings: PlanConfig,
}

impl<'a> Initialisation<'a> {
    /// Meets the others.
    fn begin(runtime: &'a Arc<RuntimeInner>, joining: &'a Joining) -> Result<Self> {
        let config = &runtime.config;
        super::algorithms::check_names(config)?;
        let settings = runtime.plan_config()?;
        let deadline = Instant::now() + config.bootstrap.init_timeout;
        let interface = config.bootstrap.interface.as_ref().or(config.transport.interface.as_ref());
        let interface = match interface {
            Some(name) => InterfaceChoice::parse(name)?,
            None => InterfaceChoice::Auto,
        };
        let bootstrap = Bootstrap::join(JoinOptions {
            is_one_host: joining.is_one_host,
            interface,
            init_timeout: config.bootstrap.init_timeout,
            handshake_timeout: config.bootstrap.handshake_timeout,
            protocol_version: PLANNER_VERSION,
            cancel: Some(Arc::clone(&joining.cancel)),
            ..JoinOptions::new(joining.rendezvous.clone(), joining.rank, joining.ranks)
        })?;
        let key = bootstrap.key().derive("iccl communicator id", &[]);
        let id = u64::from_le_bytes(std::array::from_fn(|at| key.expose()[at]));
        // 0 means "every communicator" in notices.
        Ok(Self { runtime, joining, bootstrap, id: id.max(1), deadline, settings })
    }

    /// A rank that dies while others try its memory leaves links without a way; the news of its death
    /// comes a moment later, and is what counts.
    fn true_cause(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::PlanUnsatisfiable {
            return error;
        }
        let until = Instant::now() + NEWS;
        loop {
            let lost = |notice: &Notice| notice.kind == ErrorKind::PeerLost;
            if let Some(notice) = self.bootstrap.notices().into_iter().find(lost) {
                return notice.to_error();
            }
            if Instant::now() >= until {
                return error;
            }
            std::thread::sleep(LONGEST_PAUSE);
        }
    }

    /// Everything up to the plan.
    fn agree(&self) -> Result<Agreed> {
        let (rank, ranks) = (self.joining.rank, self.joining.ranks);
        let mut domains = self.open_domains();
        let descriptors = self.exchange_descriptors(&mut domains)?;
        self.compare_settings(&descriptors)?;
        let first = plan(&descriptors, &self.settings, &Evidence::default())?;
        let (attached, found) = attach(
            &Attempt {
                rank,
                plan: &first,
                descriptors: &descriptors,
                deadline: self.deadline,
                cancel: &self.joining.cancel,
            },
            &mut domains,
        )?;
        let mut found = found;
        found.merge(&attach::register(rank, self.runtime.device()?, &descriptors, &mut domains));
        let native = self.join_native(&first, &mut found, &mut domains)?;
        let evidence = self.exchange_evidence(&found, &mut domains)?;
        let (plan, attached) = if evidence.is_empty() {
            (first, attached)
        } else {
            let second = plan(&descriptors, &self.settings, &evidence)?;
            // Both ends see the same evidence, so both keep a channel or both close it.
            let (kept, dropped): (Attached, Attached) =
                attached.into_iter().partition(|((peer, domain), _)| {
                    let transport = second.link(rank, *peer).and_then(|link| link.chosen.transport);
                    transport.as_deref() == Some(domains[*domain].name())
                });
            for ((_, domain), channel) in dropped {
                // It carried nothing yet.
                let _ = domains[domain].channel_close(channel);
            }
            (second, kept)
        };
        let is_used = |island: &PlannedIsland| island.is_used() && island.ranks.contains(&rank);
        // Where the others do without it, so does this rank.
        let native = native.filter(|_| plan.islands().iter().any(is_used));
        for warning in plan.warnings() {
            tracing::warn!(rank, "{warning}");
        }
        if self.runtime.config.device.on_degrade == OnDegrade::Fail
            && let Some(warning) = plan.warnings().first()
        {
            return Err(Error::new(ErrorKind::PlanUnsatisfiable, warning.clone())
                .with("device.on_degrade", "fail"));
        }
        let algorithms = Algorithms::new(&self.runtime.config, &plan)?;
        tracing::info!(rank, ranks, "plan: {}", plan.report().summary());
        Ok(Agreed { plan, algorithms, descriptors, domains, attached, native })
    }

    /// Tells the other ranks that this one gives up, so that they need not wait for it.
    fn tell(&self, error: &Error) {
        let rank = self.joining.rank;
        let culprit = error.rank().unwrap_or(rank);
        let message = format!("rank {rank} could not initialise: {error}");
        // 0: whatever of this job another rank waits for.
        if let Err(error) = self.bootstrap.notify_failure(0, Some(culprit), error.kind(), message) {
            tracing::debug!(%error, "the other ranks could not be told");
        }
    }

    /// Opens every transport that may be used, listening.
    fn open_domains(&self) -> Domains {
        let config = &self.runtime.config;
        let key = self.bootstrap.key().derive("iccl data", &self.id.to_le_bytes());
        let interface =
            config.transport.interface.clone().unwrap_or(self.bootstrap.local_ip().to_string());
        let mut domains = Domains::new();
        if self.joining.ranks == 1 {
            return domains;
        }
        for transport in self.runtime.plugins.transports() {
            let opened = PluginDomain::open(
                transport,
                &DomainRequest {
                    communicator: self.id,
                    rank: self.joining.rank,
                    ranks: self.joining.ranks,
                    local_ranks: if self.joining.is_one_host { self.joining.ranks } else { 0 },
                    job_key: key.expose(),
                    interface: &interface,
                    handshake_timeout: config.bootstrap.handshake_timeout,
                    // A peer opens its end with its first call, which may come late; how late is for
                    // the operation's deadline to say.
                    connect_timeout: config.bootstrap.connect_timeout.max(config.engine.op_timeout),
                },
            );
            match opened {
                Ok(domain) => domains.push(Box::new(domain)),
                Err(error) => {
                    tracing::warn!(rank = self.joining.rank, transport = transport.tier(), %error,
                        "a transport cannot be used");
                }
            }
        }
        domains
    }

    fn exchange_descriptors(&self, domains: &mut [Box<dyn Domain>]) -> Result<Vec<RankDescriptor>> {
        let config = &self.runtime.config;
        let host = HostIdentity::detect(config.bootstrap.host_id.as_deref())?;
        let descriptor = describe(
            self.joining.rank,
            &host,
            self.runtime.device()?,
            &self.runtime.plugins,
            Some(domains),
            &self.settings.agreed,
            config.device.native,
        )?;
        let bytes = descriptor.encode().map_err(not_encoded)?;
        let gathered = self.gather(DESCRIPTORS_TAG, &bytes, domains)?;
        gathered
            .iter()
            .enumerate()
            .map(|(rank, bytes)| {
                RankDescriptor::decode(bytes).map_err(|error| {
                    Error::new(
                        ErrorKind::VersionMismatch,
                        format!("the descriptor of rank {rank} cannot be read"),
                    )
                    .with_rank(rank as u32)
                    .with_source(error)
                })
            })
            .collect()
    }

    /// Where ranks have different settings, finds out which, so that the error names them. All ranks
    /// see the same digests, so all come here or none.
    fn compare_settings(&self, descriptors: &[RankDescriptor]) -> Result<()> {
        let digest = |one: &RankDescriptor| one.agreed_digest;
        if descriptors.windows(2).all(|pair| digest(&pair[0]) == digest(&pair[1])) {
            return Ok(());
        }
        let inputs = RankInputs {
            rank: self.joining.rank,
            digests: InputDigests::of(descriptors, &self.settings, &Evidence::default())?,
            settings: self.settings.agreed.clone(),
        };
        let bytes = inputs.encode().map_err(not_encoded)?;
        let left = self.left()?;
        let gathered = self.bootstrap.all_gather(INPUTS_TAG, &bytes, left)?;
        let inputs: Vec<RankInputs> = gathered
            .iter()
            .map(|bytes| RankInputs::decode(bytes).map_err(not_encoded))
            .collect::<Result<_>>()?;
        diff(&inputs).as_ref().map_or(Ok(()), |divergence: &Divergence| {
            let error = Error::new(ErrorKind::PlanDiverged, divergence.to_string());
            Err(match divergence.odd_one_out() {
                Some(rank) => error.with_rank(rank),
                None => error,
            })
        })
    }

    /// Joins the native communicator of this rank's island, if the plan has one. What fails is added to
    /// `found`.
    fn join_native(
        &self,
        plan: &Plan,
        found: &mut Evidence,
        domains: &mut [Box<dyn Domain>],
    ) -> Result<Option<Joined>> {
        if !plan.islands().iter().any(PlannedIsland::is_used) {
            return Ok(None);
        }
        let runtime = self.runtime;
        // The evidence is still to be exchanged when all that can go wrong here has gone wrong.
        let patience = runtime.config.device.native_timeout.min(self.left()? / 2);
        let deadline = Instant::now() + patience;
        let (rank, device) = (self.joining.rank, runtime.device()?);
        let attempt = native::Attempt::new(plan, rank, &runtime.plugins, device, deadline);
        let mut fail = |fact: RankFact| {
            tracing::warn!(rank, "{fact:?}");
            found.add_rank(rank, fact);
        };
        let cancel = &self.joining.cancel;
        let meanwhile = |domains: &mut [Box<dyn Domain>]| {
            native::is_cancelled(cancel).and_then(|()| progress(domains))
        };
        let id = match &attempt {
            None => Vec::new(),
            Some(attempt) => {
                attempt.unique_id(&mut || meanwhile(domains))?.unwrap_or_else(|fact| {
                    fail(fact);
                    Vec::new()
                })
            }
        };
        let ids = self.gather(NATIVE_TAG, &id, domains)?;
        let Some(attempt) = attempt else { return Ok(None) };
        match attempt.join(&ids, &mut || meanwhile(domains))? {
            Ok(joined) => Ok(Some(joined)),
            Err(fact) => {
                fail(fact);
                Ok(None)
            }
        }
    }

    fn exchange_evidence(
        &self,
        found: &Evidence,
        domains: &mut [Box<dyn Domain>],
    ) -> Result<Evidence> {
        let bytes = found.encode().map_err(not_encoded)?;
        let mut all = Evidence::default();
        for bytes in self.gather(EVIDENCE_TAG, &bytes, domains)? {
            all.merge(&Evidence::decode(&bytes).map_err(not_encoded)?);
        }
        if !all.is_empty() {
            all.epoch = 1;
        }
        Ok(all)
    }

    /// Gathers, and answers those who dial meanwhile.
    fn gather(
        &self,
        tag: u32,
        bytes: &[u8],
        domains: &mut [Box<dyn Domain>],
    ) -> Result<Vec<Vec<u8>>> {
        let left = self.left()?;
        let cancel = &self.joining.cancel;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let gathering = scope.spawn(|| {
                let gathered = self.bootstrap.all_gather_cancellable(tag, bytes, left, cancel);
                done.store(true, Ordering::Release);
                gathered
            });
            let mut progressed = Ok(());
            let mut pause = SHORTEST_PAUSE;
            while !done.load(Ordering::Acquire) && !gathering.is_finished() {
                if progressed.is_ok() {
                    progressed = progress(domains);
                }
                // Soon at first, since most ranks come together; a rank that is late costs little.
                std::thread::sleep(pause);
                pause = (pause * 5 / 4).min(LONGEST_PAUSE);
            }
            let gathered = gathering.join().unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Internal, "the exchange between ranks panicked"))
            });
            gathered.and_then(|gathered| progressed.map(|()| gathered))
        })
    }

    fn start(self, agreed: Agreed) -> Result<Communicator> {
        let (rank, ranks) = (self.joining.rank, self.joining.ranks);
        let Agreed { plan, algorithms, descriptors, domains, attached, native } = agreed;
        let (domains, links) = wire(rank, &plan, &descriptors, domains, &attached)
            .inspect_err(|error| self.tell(error))?;
        let config = &self.runtime.config;
        let flights = self.flights(&plan);
        let family = Family::new(self.runtime, self.bootstrap.lineage(), self.joining);
        let control = Control::new(self.bootstrap);
        let (teller, id) = (control.clone(), self.id);
        let give_up = |error: Error| {
            control.tell(id, &error.clone().with_rank(rank));
            error
        };
        // It was opened before this rank described itself to the others.
        let device = self.runtime.device()?.clone();
        let engine = Engine::start(EngineParts {
            rank,
            ranks,
            communicator: id,
            epoch: plan.epoch(),
            options: EngineOptions {
                stall_warn: config.engine.stall_warn,
                spin: config.engine.spin,
                staging_bytes: config.engine.staging_bytes,
                ..EngineOptions::default()
            },
            flights,
            domains,
            links,
            pinned: device.inner.pinned.clone(),
            native: native.as_ref().and_then(Joined::island),
            on_failure: Box::new(move |error| teller.tell(id, error)),
        });
        let engine = Arc::new(engine.map_err(give_up)?);
        device.inner.add_engine(&engine);
        native.into_iter().for_each(Joined::keep);
        control.listen(id, &engine);
        Communicator::new(CommunicatorParts {
            rank,
            ranks,
            id,
            device,
            engine,
            plan: Arc::new(plan),
            algorithms,
            chunk_bytes: config.engine.chunk_bytes,
            op_timeout: config.engine.op_timeout,
            control: control.clone(),
            family,
        })
        .map_err(give_up)
    }

    /// Where the last operations are written if the communicator fails.
    fn flights(&self, plan: &Plan) -> Option<FlightFolder> {
        let folder = self.runtime.config.observe.flight_recorder.clone()?;
        let topology = plan.topology();
        let host = topology.host_of(self.joining.rank).and_then(|host| topology.hosts().get(host));
        let host = host.map_or_else(String::new, |host| host.name.clone());
        Some(FlightFolder { folder, host })
    }

    fn left(&self) -> Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::new(
                ErrorKind::Timeout,
                format!(
                    "initialisation took longer than {:?}",
                    self.runtime.config.bootstrap.init_timeout
                ),
            ));
        }
        Ok(left)
    }
}

/// Keeps the domains that a link of this rank uses, closes the others, and says which link uses
/// which.
fn wire(
    rank: u32,
    plan: &Plan,
    descriptors: &[RankDescriptor],
    domains: Vec<Box<dyn Domain>>,
    attached: &Attached,
) -> Result<(Domains, Vec<Option<Link>>)> {
    let chosen: Vec<Option<usize>> = descriptors
        .iter()
        .map(|peer| {
            if peer.rank == rank {
                return Ok(None);
            }
            let transport = plan.link(rank, peer.rank).and_then(|link| link.chosen.transport);
            let domain = domains
                .iter()
                .position(|domain| Some(domain.name()) == transport.as_deref())
                .ok_or_else(|| {
                    Error::new(
                        ErrorKind::Internal,
                        format!("the link to rank {} has no open transport", peer.rank),
                    )
                })?;
            Ok(Some(domain))
        })
        .collect::<Result<_>>()?;
    let mut kept = Vec::new();
    let mut places = Vec::new();
    for (index, domain) in domains.into_iter().enumerate() {
        let used = chosen.contains(&Some(index));
        places.push(used.then_some(kept.len()));
        if used {
            kept.push(domain);
        }
    }
    let links = descriptors
        .iter()
        .zip(&chosen)
        .map(|(peer, domain)| {
            let index = (*domain)?;
            let place = places[index]?;
            Some(Link {
                domain: place,
                address: peer.transport(kept[place].name())?.address.clone(),
                digest: plan.link_digest(rank, peer.rank)?,
                access: plan.link(rank, peer.rank)?.chosen.src,
                channel: attached.get(&(peer.rank, index)).copied(),
            })
        })
        .collect();
    Ok((kept, links))
}

fn not_encoded(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Internal, "what ranks exchange cannot be read or written")
        .with_source(error)
}
