//! SPDK's programs, to compare with: its host (`spdk_nvme_perf`, `spdk_host.rs`) and its target (`nvmf_tgt`).
//!
//! They come from `PATH`, or from the directory that `NVLANE_SPDK_BIN` names. Where the machine has no huge pages set aside for them,
//! they run without.

pub(crate) mod target;

use std::path::{Path, PathBuf};
use std::process::Command;

/// Environment variable with the directory of the programs.
const VARIABLE: &str = "NVLANE_SPDK_BIN";

/// Memory of each program, MiB.
const MEMORY_MIB: u64 = 1024;

/// Name of the host's program.
pub(crate) const HOST_PROGRAM: &str = "spdk_nvme_perf";

pub(crate) fn host_program() -> Result<PathBuf, String> {
    program(HOST_PROGRAM)
}

/// The program with this name.
fn program(name: &str) -> Result<PathBuf, String> {
    let directories = match std::env::var_os(VARIABLE) {
        Some(directory) => vec![PathBuf::from(directory)],
        None => {
            std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default()
        }
    };
    find(name, &directories).ok_or_else(|| {
        format!("{name} of SPDK in PATH, or in the directory that {VARIABLE} names (build/bin of SPDK)")
    })
}

fn find(name: &str, directories: &[PathBuf]) -> Option<PathBuf> {
    directories.iter().map(|directory| directory.join(name)).find(|path| path.is_file())
}

/// SPDK's version, as its target prints it, and whether it has huge pages; `None` if it is not there.
pub(crate) fn described() -> Option<String> {
    let program = target::program().or_else(|_| host_program()).ok()?;
    let said = Command::new(program).arg("--version").output().ok();
    let said = said.map(|said| [said.stdout, said.stderr].concat()).unwrap_or_default();
    let said = String::from_utf8_lossy(&said).into_owned();
    let version = version(&said).unwrap_or("of unknown version");
    let pages = if has_huge_pages() { "with huge pages" } else { "without huge pages" };
    Some(format!("SPDK {version}, {pages}"))
}

/// The word after the name, in lines such as `SPDK v26.05 git sha1 ...`.
fn version(said: &str) -> Option<&str> {
    let mut words = said.split_ascii_whitespace().skip_while(|word| *word != "SPDK");
    words.nth(1).filter(|word| word.starts_with('v'))
}

/// The options for its memory.
pub(crate) fn memory_options(command: &mut Command) {
    command.args(["-s", &MEMORY_MIB.to_string()]);
    if !has_huge_pages() {
        command.arg("--no-huge");
    }
}

/// Whether enough huge pages of the default size are free for host and target.
fn has_huge_pages() -> bool {
    std::fs::read_to_string("/proc/meminfo").is_ok_and(|text| free_huge_mib(&text) >= 2 * MEMORY_MIB)
}

fn free_huge_mib(meminfo: &str) -> u64 {
    let number = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse().ok()
    };
    let free = number("HugePages_Free:").zip(number("Hugepagesize:"));
    free.map_or(0, |(count, kib)| count.saturating_mul(kib) / 1024)
}

/// The mask of these cores, as DPDK takes it.
pub(crate) fn core_mask(cores: &[usize]) -> String {
    // One hexadecimal digit has four cores.
    let digits = cores.iter().max().map_or(1, |last| last / 4 + 1);
    let digit = |at: usize| {
        let of_digit = cores.iter().filter(|core| **core / 4 == at);
        of_digit.fold(0_u8, |mask, core| mask | 1 << (core % 4))
    };
    (0..digits).rev().fold("0x".to_owned(), |mask, at| format!("{mask}{:x}", digit(at)))
}

/// A command that starts a program of SPDK, which ends with this process, and prints each line at once.
pub(crate) fn command(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "stdbuf", "-oL"]).arg(program);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_word_after_the_name() {
        assert_eq!(version("SPDK v26.05 git sha1 1a2b3c\n"), Some("v26.05"));
        assert_eq!(version("nvmf_tgt: unrecognized option"), None);
    }

    #[test]
    fn a_core_has_its_bit_in_the_mask() {
        let masks = [0, 1, 5, 64].map(|core| core_mask(&[core]));
        assert_eq!(masks, ["0x1", "0x2", "0x20", "0x10000000000000000"]);
        assert_eq!([core_mask(&[4, 0, 5]), core_mask(&[0, 2, 3, 1, 8])], ["0x31", "0x10f"]);
    }

    #[test]
    fn huge_pages_are_counted_as_the_kernel_writes_them() {
        let meminfo = "MemTotal: 24 kB\nHugePages_Total:    1200\nHugePages_Free:     1100\nHugepagesize:       2048 kB\n";
        assert_eq!(free_huge_mib(meminfo), 2200);
        assert_eq!(free_huge_mib("MemTotal: 24 kB\n"), 0);
    }

    #[test]
    fn a_program_is_found_in_the_first_directory_that_has_it() {
        let here = tempfile::tempdir().unwrap();
        let empty = tempfile::tempdir().unwrap();
        std::fs::write(here.path().join("nvmf_tgt"), "").unwrap();
        let directories = [empty.path().to_owned(), here.path().to_owned()];
        assert_eq!(find("nvmf_tgt", &directories), Some(here.path().join("nvmf_tgt")));
        assert_eq!(find("spdk_nvme_perf", &directories), None);
    }
}
