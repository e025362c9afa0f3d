//! What the memory of the process has of a password after it was compared.
#![allow(missing_docs)]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use nvlane_security::users::Users;
use zeroize::Zeroize;

/// Bytes of this process that are those of the password, which is given in another form.
fn count_in_memory(inverted: &[u8]) -> usize {
    let memory = File::open("/proc/self/mem").expect("Linux");
    let maps = fs::read_to_string("/proc/self/maps").expect("Linux");
    let mut count = 0;
    for line in maps.lines().filter(|line| line.contains(" rw") && !line.contains("[v")) {
        let (begin, end) =
            line.split_once(' ').and_then(|(range, _)| range.split_once('-')).expect("a range");
        let [begin, end] = [begin, end].map(|digits| u64::from_str_radix(digits, 16).expect("an address"));
        // Inverted at once: what was read is in the memory, too.
        let mut page = [0_u8; 4096 + 64];
        for at in (begin..end).step_by(4096) {
            let bytes = memory.read_at(&mut page, at).unwrap_or(0);
            page.iter_mut().for_each(|byte| *byte = !*byte);
            let found = page[..bytes].windows(inverted.len());
            // The buffer itself is on the stack.
            count += found.filter(|window| *window == inverted).count();
            page.zeroize();
        }
    }
    count
}

#[test]
fn nothing_is_left_of_a_password_that_was_compared() {
    for length in [9, 30, 100] {
        // Random enough to be nowhere else, and never in the memory as a whole but where it is used.
        let inverted: Vec<u8> =
            (0..length).map(|at: u8| !(b'!' + at.wrapping_mul(37) % 90 / 2 + at % 7)).collect();
        let [is_compared, is_to_end] = [const { AtomicBool::new(false) }; 2];
        let [is_compared, is_to_end] = [&is_compared, &is_to_end];
        std::thread::scope(|scope| {
            // Its stack stays as it was left: nothing is called but what is tested.
            let inverted = &inverted;
            let comparison = scope.spawn(move || {
                let mut password: Vec<u8> = inverted.iter().map(|byte| !byte).collect();
                let mut text = String::with_capacity(200);
                text.push_str("user:");
                text.push_str(std::str::from_utf8(&password).expect("printable"));
                let users = Users::parse(&text, [7; 32]).expect("a list");
                text.zeroize();
                assert_eq!(users.find(b"user", &password), Some("user"));
                password.zeroize();
                is_compared.store(true, Ordering::Release);
                while !is_to_end.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
            });
            while !is_compared.load(Ordering::Acquire) {
                assert!(!comparison.is_finished(), "the thread that compares has failed");
                std::thread::yield_now();
            }
            // The other thread ends also if this panics.
            let count = std::panic::catch_unwind(|| count_in_memory(inverted));
            is_to_end.store(true, Ordering::Release);
            assert_eq!(count.expect("counted"), 0, "{length} bytes");
        });
    }
}
