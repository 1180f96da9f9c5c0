//! The name under which programs find the library, and that it stays loaded: its threads outlive a
//! `dlclose`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libiccl.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
