//! Linker arguments: nothing but this program's own objects, at a fixed address, because there is
//! no loader that would relocate it.

fn main() {
    for argument in ["-nostartfiles", "-nostdlib", "-static", "-no-pie"] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
