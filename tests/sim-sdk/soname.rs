//! The soname of a simulated library is the name of its folder.

fn main() {
    println!("cargo::rerun-if-changed=Cargo.toml");
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where it builds");
    let name = folder.rsplit('/').next().expect("a folder has a name");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{name}");
}
