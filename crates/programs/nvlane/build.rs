//! How the program is linked.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Relocations as a bit map: 0.7 MB less. Since glibc 2.36 and binutils 2.38.
    println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    // Functions of the same instructions once: 0.2 MB less. Nothing compares the addresses of functions.
    if is_linked_by_lld() {
        println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
    }
}

/// Whether rustc links with the LLD that comes with it, as it does on x86-64 unless told otherwise.
fn is_linked_by_lld() -> bool {
    let is = |name, value| env::var(name).is_ok_and(|is| is == value);
    let linux = "x86_64-unknown-linux-gnu";
    let is_told = env::var_os("RUSTC_LINKER").is_some()
        || env::var("CARGO_ENCODED_RUSTFLAGS").is_ok_and(|flags| flags.contains("link"));
    is("HOST", linux) && is("TARGET", linux) && !is_told && has_lld()
}

fn has_lld() -> bool {
    let Some(rustc) = env::var_os("RUSTC") else { return false };
    let output = Command::new(rustc).args(["--print", "target-libdir"]).output();
    let directory = output.ok().and_then(|output| String::from_utf8(output.stdout).ok()).unwrap_or_default();
    Path::new(directory.trim()).with_file_name("bin/gcc-ld/ld.lld").is_file()
}
