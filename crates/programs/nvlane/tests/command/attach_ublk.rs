//! `nvlane attach ublk` where the kernel has no ublk, and its mistakes. What it does with a kernel that has it:
//! `cargo xtask interop disk/ublk`.

use std::path::Path;

use crate::support::run;

#[test]
fn without_the_module_its_name_and_another_bridge_are_told() {
    if Path::new("/dev/ublk-control").exists() {
        eprintln!("skipped: this kernel has ublk");
        return;
    }
    for options in [&["127.0.0.1:1"][..], &["--remove", "/dev/ublkb0"]] {
        let complaint = run([&["attach", "ublk"][..], options].concat()).complaint(2);
        for word in ["modprobe ublk_drv", "linux-image-6.12-amd64", "nvlane attach nbd needs no module"] {
            assert!(complaint.contains(word), "{word}: {complaint}");
        }
    }
}

#[test]
fn options_that_do_not_go_together_are_told() {
    let mistake = |options: &[&str]| {
        let ended = run([&["attach", "ublk"][..], options].concat());
        assert_eq!(ended.code, 2, "{ended:?}");
        ended.stderr
    };
    assert!(mistake(&[]).contains("<ADDR>"));
    let both = mistake(&["--remove", "/dev/ublkb0", "--read-only"]);
    assert!(both.contains("--read-only"), "{both}");
    let number = mistake(&["127.0.0.1:1", "--number", "1048576"]);
    assert!(number.contains("--number"), "{number}");
    let help = run(["attach", "ublk", "--help"]).text();
    for word in ["ublk_drv", "--no-recovery", "--fast-io-fail", "--dhchap-secret", "NVLANE_DEVICE"] {
        assert!(help.contains(word), "{word}");
    }
}
