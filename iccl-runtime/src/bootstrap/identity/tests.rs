use super::*;

/// An environment recorded under a launcher: `tests/launchers/NAME.env`.
macro_rules! recorded {
    ($name:literal) => {
        parse(include_str!(concat!("../../../tests/launchers/", $name, ".env")))
    };
}

fn parse(text: &str) -> Environment {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('='))
        .collect()
}

fn discover(environment: &Environment) -> Identity {
    discover_with(environment, &IdentitySettings::default()).unwrap().unwrap()
}

fn discover_with(
    environment: &Environment,
    settings: &IdentitySettings,
) -> Result<Option<Identity>> {
    Identity::discover(environment, settings)
}

/// The environment with some variables changed; an empty value removes one.
fn changed(text: &str, changes: &[(&str, &str)]) -> Environment {
    let kept = text.lines().filter_map(|line| line.split_once('='));
    let kept = kept.filter(|(name, _)| !changes.iter().any(|(changed, _)| changed == name));
    kept.chain(changes.iter().copied()).collect()
}

fn place(identity: &Identity) -> (u32, u32, Option<u32>, Option<u32>) {
    (identity.rank, identity.world_size, identity.local_rank, identity.local_world_size)
}

fn address(identity: &Identity) -> Meeting {
    match identity.rendezvous().unwrap() {
        Rendezvous::Address(meeting) => meeting,
        other => panic!("expected an address, found {other}"),
    }
}

#[test]
fn torchrun() {
    let identity = discover(&recorded!("torchrun"));
    assert_eq!(identity.launcher, Launcher::Torch);
    assert_eq!(identity.source, "RANK, WORLD_SIZE");
    assert_eq!(place(&identity), (5, 8, Some(1), Some(4)));
    assert!(!identity.is_one_host());
    let meeting = address(&identity);
    assert_eq!(meeting.host, "10.0.0.1");
    assert!(!meeting.ports.contains(&29500), "the agent listens there");
    assert_eq!(meeting.ports.len(), 3);
}

#[test]
fn a_restart_of_torchrun_meets_elsewhere() {
    let text = include_str!("../../../tests/launchers/torchrun.env");
    let first = address(&discover(&parse(text)));
    let restarted = changed(text, &[("TORCHELASTIC_RESTART_COUNT", "1")]);
    let second = address(&discover(&restarted));
    assert_ne!(first.job, second.job);
    assert_ne!(first.ports, second.ports);
}

#[test]
fn torchrun_under_srun_is_torchrun() {
    let identity = discover(&recorded!("torchrun-under-srun"));
    assert_eq!(identity.launcher, Launcher::Torch);
    assert_eq!(place(&identity), (9, 16, Some(1), Some(8)));
}

#[test]
fn open_mpi() {
    let identity = discover(&recorded!("openmpi"));
    assert_eq!(identity.launcher, Launcher::OpenMpi);
    assert_eq!(place(&identity), (1, 2, Some(1), Some(2)));
    assert_eq!(identity.job, "1397489665");
    let Rendezvous::LocalSocket { job } = identity.rendezvous().unwrap() else {
        panic!("all ranks are here and there is no address")
    };
    assert_eq!(job, "Open MPI 1397489665");
}

#[test]
fn open_mpi_inside_slurm_is_open_mpi() {
    let identity = discover(&recorded!("openmpi-under-slurm"));
    assert_eq!(identity.launcher, Launcher::OpenMpi);
    assert_eq!(place(&identity), (3, 4, Some(1), Some(2)));
}

#[test]
fn several_hosts_without_an_address_say_what_to_set() {
    let text = include_str!("../../../tests/launchers/openmpi.env");
    let spread = changed(text, &[("OMPI_COMM_WORLD_SIZE", "4")]);
    let error = discover(&spread).rendezvous().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.message().contains("2 of 4 ranks are on this host"), "{error}");
    assert!(error.hint().unwrap().contains("ICCL_ROOT=host:port"), "{error}");
    let settings = IdentitySettings {
        root: Some(RootSetting::parse("node0:5000").unwrap()),
        ..IdentitySettings::default()
    };
    let meeting = address(&discover_with(&spread, &settings).unwrap().unwrap());
    assert_eq!((meeting.host.as_str(), meeting.ports), ("node0", vec![5000]));
}

#[test]
fn mpich() {
    let identity = discover(&recorded!("mpich"));
    assert_eq!(identity.launcher, Launcher::Pmi);
    assert_eq!(place(&identity), (1, 2, Some(1), Some(2)));
    assert!(matches!(identity.rendezvous().unwrap(), Rendezvous::LocalSocket { .. }));
}

#[test]
fn mvapich2() {
    let identity = discover(&recorded!("mvapich2"));
    assert_eq!(identity.launcher, Launcher::Mvapich2);
    assert_eq!(place(&identity), (2, 4, Some(0), Some(2)));
}

#[test]
fn slurm() {
    let identity = discover(&recorded!("slurm"));
    assert_eq!(identity.launcher, Launcher::Slurm);
    assert_eq!(identity.source, "SLURM_PROCID, SLURM_STEP_NUM_TASKS");
    assert_eq!(place(&identity), (8, 9, Some(0), Some(1)));
    let meeting = address(&identity);
    assert_eq!(meeting.host, "gnode10");
    assert!(meeting.ports.iter().all(|port| (20000..30000).contains(port)), "{meeting:?}");
}

#[test]
fn a_batch_script_of_slurm_is_one_process() {
    let environment = recorded!("slurm-batch-script");
    let settings = IdentitySettings::default();
    assert!(discover_with(&environment, &settings).unwrap().is_none());
}

#[test]
fn srun_with_pmi_meets_where_slurm_says() {
    let identity = discover(&recorded!("slurm-pmi2"));
    assert_eq!(identity.launcher, Launcher::Pmi);
    assert_eq!((identity.rank, identity.world_size), (1, 2));
    assert_eq!(address(&identity).host, "gnode10");
}

#[test]
fn kubernetes_needs_the_size() {
    let environment = recorded!("kubernetes-indexed-job");
    let mut settings = IdentitySettings::default();
    assert!(discover_with(&environment, &settings).unwrap().is_none());
    assert_eq!(
        near_misses(&environment, &settings),
        ["JOB_COMPLETION_INDEX is set, but no world size: set ICCL_WORLD_SIZE"]
    );
    settings.world_size = Some(4);
    let identity = discover_with(&environment, &settings).unwrap().unwrap();
    assert_eq!(identity.launcher, Launcher::Kubernetes);
    assert_eq!(identity.source, "JOB_COMPLETION_INDEX, ICCL_WORLD_SIZE");
    assert_eq!((identity.rank, identity.world_size), (3, 4));
    settings.root = Some(RootSetting::parse_host("train-0.train").unwrap());
    let identity = discover_with(&environment, &settings).unwrap().unwrap();
    assert_eq!(address(&identity).host, "train-0.train");
}

#[test]
fn kubeflow_counts_pods() {
    let text = include_str!("../../../tests/launchers/kubeflow-pytorchjob.env");
    let identity = discover(&parse(text));
    assert_eq!((identity.rank, identity.world_size), (1, 2));
    assert!(identity.note.as_deref().unwrap().contains("count pods"));
    for (name, value) in
        [("PET_NPROC_PER_NODE", "8"), ("NPROC_PER_NODE", "8"), ("PET_NPROC_PER_NODE", "gpu")]
    {
        let environment = changed(text, &[(name, value)]);
        let error = discover_with(&environment, &IdentitySettings::default()).unwrap_err();
        assert!(error.message().contains(name), "{error}");
    }
    // With torchrun inside there is a local rank, and all is well.
    let inside = changed(text, &[("LOCAL_RANK", "0"), ("PET_NPROC_PER_NODE", "8")]);
    assert_eq!(discover(&inside).note, None);
}

#[test]
fn jsrun_and_pals() {
    let identity = discover(&recorded!("jsrun"));
    assert_eq!(identity.launcher, Launcher::Jsm);
    assert_eq!(place(&identity), (6, 12, Some(0), Some(6)));
    let identity = discover(&recorded!("pals"));
    assert_eq!(identity.launcher, Launcher::Pmi);
    assert_eq!(place(&identity), (4, 8, Some(0), Some(4)));
    assert_eq!(identity.job, "6f1c0f0e-6d2b-4f3e-9a53-8e3a2a0f4b11");
}

#[test]
fn a_job_started_by_hand_for_torch() {
    let identity = discover(&recorded!("torch-by-hand"));
    assert_eq!(place(&identity), (1, 2, None, None));
    let meeting = address(&identity);
    assert_eq!(meeting.host, "localhost");
    assert!(!meeting.ports.contains(&29500), "torch.distributed will listen there");
}

#[test]
fn iccls_own_settings_win_over_every_launcher() {
    let settings = IdentitySettings {
        rank: Some(0),
        world_size: Some(3),
        local_rank: Some(0),
        local_world_size: Some(3),
        ..IdentitySettings::default()
    };
    for environment in [recorded!("torchrun"), recorded!("openmpi"), recorded!("slurm")] {
        let identity = discover_with(&environment, &settings).unwrap().unwrap();
        assert_eq!(identity.launcher, Launcher::Iccl);
        assert_eq!(place(&identity), (0, 3, Some(0), Some(3)));
    }
}

#[test]
fn half_a_setting_is_an_error_that_says_which_half_is_missing() {
    let nothing = Environment::default();
    let rank = IdentitySettings { rank: Some(1), ..IdentitySettings::default() };
    let error = discover_with(&nothing, &rank).unwrap_err().to_string();
    assert!(error.contains("set ICCL_WORLD_SIZE"), "{error}");
    let size = IdentitySettings { world_size: Some(2), ..IdentitySettings::default() };
    let error = discover_with(&nothing, &size).unwrap_err().to_string();
    assert!(error.contains("set ICCL_RANK"), "{error}");
    assert!(discover_with(&nothing, &IdentitySettings::default()).unwrap().is_none());
}

#[test]
fn a_local_rank_without_a_rank_is_nothing() {
    // Old launch scripts leave it behind.
    let environment = [("LOCAL_RANK", "3"), ("MASTER_PORT", "29500")].into_iter().collect();
    assert!(discover_with(&environment, &IdentitySettings::default()).unwrap().is_none());
}

#[test]
fn values_that_make_no_sense_name_their_variable() {
    let text = include_str!("../../../tests/launchers/torchrun.env");
    for (change, expected) in [
        (("RANK", "one"), "RANK=\"one\": expected a whole number"),
        (("RANK", "-1"), "RANK=\"-1\""),
        (("RANK", "8"), "rank 8 is not below the world size 8 (RANK, WORLD_SIZE)"),
        (("LOCAL_RANK", "4"), "local rank 4 of 4"),
        (("LOCAL_WORLD_SIZE", "9"), "local rank 1 of 9 in a job of 8"),
        (("MASTER_PORT", "0x5"), "MASTER_PORT=\"0x5\""),
        (("MASTER_ADDR", "0.0.0.0"), "0.0.0.0"),
    ] {
        let environment = changed(text, &[change]);
        let error = discover_with(&environment, &IdentitySettings::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn one_rank_meets_nobody_and_a_unique_id_beats_every_address() {
    let environment = [("RANK", "0"), ("WORLD_SIZE", "1")].into_iter().collect();
    assert!(matches!(discover(&environment).rendezvous().unwrap(), Rendezvous::Alone));
    let id = crate::bootstrap::UniqueId::new(
        "127.0.0.1:5".parse().unwrap(),
        iccl_wire::Key::from_bytes([1; 32]),
        [2; 16],
    );
    let settings = IdentitySettings { unique_id: Some(id), ..IdentitySettings::default() };
    let identity = discover_with(&recorded!("torchrun"), &settings).unwrap().unwrap();
    assert!(matches!(identity.rendezvous().unwrap(), Rendezvous::UniqueId(_)));
}
