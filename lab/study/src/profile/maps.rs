//! Executable mappings of a process, from `/proc/PID/maps`.

use std::fs;

use crate::error::{Doing, Error};

/// Name of the mapping with the kernel's code for programs, such as reading the clock.
pub(super) const VDSO: &str = "[vdso]";

/// An executable mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    /// Offset of its start in the file, bytes.
    offset: u64,
    /// The file, or a name in brackets.
    path: String,
}

/// Executable mappings of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Maps(Vec<Mapping>);

impl Maps {
    /// Those of a live process.
    pub(crate) fn of(pid: u32) -> Result<Self, Error> {
        let text = fs::read_to_string(format!("/proc/{pid}/maps"));
        Ok(Self::parse(&text.doing("the mappings of a process")?))
    }

    pub(super) fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(parse_line).collect())
    }

    /// File, or name in brackets, and offset in it of an address.
    pub(super) fn find(&self, address: u64) -> Option<(&str, u64)> {
        let mapping = self
            .0
            .iter()
            .find(|mapping| (mapping.start..mapping.end).contains(&address) && !mapping.path.is_empty())?;
        Some((&mapping.path, address - mapping.start + mapping.offset))
    }
}

/// A line: `START-END rwxp OFFSET DEVICE INODE   PATH`.
fn parse_line(line: &str) -> Option<Mapping> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let rights = words.next()?;
    let offset = words.next()?;
    let path = words.nth(2)?.trim_start();
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let mapping = Mapping { start: hex(start)?, end: hex(end)?, offset: hex(offset)?, path: path.to_owned() };
    rights.contains('x').then_some(mapping)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
559f2a8bb000-559f2b684000 r-xp 00420000 fe:00 9978321                    /tmp/a program
559f2b684000-559f2b6de000 rw-p 011e8000 fe:00 9978321                    /tmp/a program
7fa02a100000-7fa02a101000 rwxp 00000000 00:00 0 
7fa02a830000-7fa02a832000 r-xp 00000000 00:00 0                          [vdso]
";

    #[test]
    fn an_address_is_found_in_its_file() {
        let maps = Maps::parse(TEXT);
        assert_eq!(maps.find(0x559f_2a8b_b010), Some(("/tmp/a program", 0x42_0010)));
        assert_eq!(maps.find(0x7fa0_2a83_0123), Some((VDSO, 0x123)));
        assert_eq!(maps.find(0x559f_2b68_4000), None, "not executable");
        assert_eq!(maps.find(0x7fa0_2a10_0000), None, "of no file");
        assert_eq!(maps.find(1), None);
    }

    #[test]
    fn our_own_code_is_mapped() {
        let here = our_own_code_is_mapped as *const () as usize;
        let maps = Maps::of(std::process::id()).unwrap();
        let (path, _) = maps.find(here as u64).unwrap();
        assert_eq!(std::path::Path::new(path), std::env::current_exe().unwrap());
    }
}
