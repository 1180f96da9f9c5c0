//! A host built against the SDK as it may become: opens each plugin that it is given by both doors,
//! and calls the function that only the newer SDK knows.

use iccl_plugin_api::host::{PluginView, open_c_door, open_rust_door};
use iccl_plugin_api::tables::{ENTRY_SYMBOL, ROOT_SYMBOL};

fn main() {
    for path in std::env::args_os().skip(1) {
        // SAFETY: the tests give paths of plugins.
        let library = unsafe { libloading::Library::new(&path) }.expect("it is a library");
        let library = Box::leak(Box::new(library));
        let symbol = |name: &str| {
            // SAFETY: only the address is taken.
            *unsafe { library.get::<*const std::ffi::c_void>(name) }.expect("it has both doors")
        };
        // SAFETY: the symbols are the doors', and the library is never unloaded.
        let (rust, c) = unsafe {
            (open_rust_door(symbol(ROOT_SYMBOL)), open_c_door(symbol(ENTRY_SYMBOL)))
        };
        report("rust", rust.expect("the layouts are compatible"));
        report("c", c.expect("the tables are compatible"));
    }
}

fn report(door: &str, view: PluginView) {
    let description = view.describe().expect("it can be described");
    view.probe(None, &[]).expect("it can be probed");
    let device = view.device().expect("it has devices").open(0).expect("it has one");
    let answer = match device.cool() {
        Ok(()) => "ok".to_owned(),
        Err(error) => error.status.to_string(),
    };
    println!(
        "{door} door: {}, built with 1.{}; device.cool: {answer}",
        description.name,
        view.abi_minor()
    );
}
