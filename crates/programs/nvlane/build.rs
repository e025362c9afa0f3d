//! How the program is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Relocations as a bit map: 0.7 MB less. Since glibc 2.36 and binutils 2.38.
    println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
}
