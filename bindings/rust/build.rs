// SPDX-License-Identifier: Apache-2.0
//! Finds libcache.so: in $LIBCACHE_LIB_DIR, else where pkg-config says, else where the linker looks by itself.
use std::env;
use std::process::Command;

fn pkg_config() -> Option<String> {
    let output = Command::new("pkg-config").args(["--variable=libdir", "libcache"]).output().ok()?;
    let folder = String::from_utf8(output.stdout).ok()?.trim().to_string();
    (output.status.success() && !folder.is_empty()).then_some(folder)
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=LIBCACHE_LIB_DIR");
    if let Some(folder) = env::var("LIBCACHE_LIB_DIR").ok().or_else(pkg_config) {
        println!("cargo:rustc-link-search=native={}", folder);
        // Tests and examples of this crate run without LD_LIBRARY_PATH; a program of yours says so in its own build.rs.
        println!("cargo:rustc-link-arg=-Wl,-rpath,{}", folder);
    }
    println!("cargo:rustc-link-lib=dylib=cache");
}
