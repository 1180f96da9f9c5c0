//! Discovery of plugins: what becomes of good and of bad candidates.

use iccl_runtime::config::{Config, Sources};
use iccl_runtime::plugins::PluginSet;

#[test]
fn smoke() {
    let folder = iccl_tests::plugin_folder();
    let sources = Sources::default().with("plugins.path", folder.to_str().unwrap());
    let set = PluginSet::load(&Config::load(&sources).unwrap()).unwrap();
    for record in set.records() {
        println!(
            "{record} {:?} {:?} {:?} {:?}",
            record.probe, record.door, record.probe_time, record.self_test
        );
    }
    assert!(set.plugin("host").is_some());
}
