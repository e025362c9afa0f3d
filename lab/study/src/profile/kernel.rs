//! Functions of the running kernel, from `/proc/kallsyms`.

use std::fs;

/// The kernel's functions, in the order of their addresses.
#[derive(Debug, Default)]
pub(super) struct KernelSymbols(Vec<(u64, Box<str>)>);

impl KernelSymbols {
    /// Those of the running kernel; none where they are hidden.
    pub(super) fn load() -> Self {
        Self::parse(&fs::read_to_string("/proc/kallsyms").unwrap_or_default())
    }

    pub(super) fn parse(text: &str) -> Self {
        let mut symbols: Vec<_> = text.lines().filter_map(parse_line).collect();
        symbols.sort_by_key(|(address, _)| *address);
        Self(symbols)
    }

    /// Whether the kernel hides the addresses of its functions (`kernel.kptr_restrict`).
    pub(super) fn is_hidden(&self) -> bool {
        self.0.is_empty()
    }

    /// The function that contains an address.
    pub(super) fn find(&self, address: u64) -> Option<&str> {
        let after = self.0.partition_point(|(start, _)| *start <= address);
        Some(&self.0[after.checked_sub(1)?].1)
    }
}

/// A line: `ADDRESS TYPE NAME` and perhaps `[MODULE]`. Hidden addresses are zero.
fn parse_line(line: &str) -> Option<(u64, Box<str>)> {
    let mut words = line.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let kind = words.next()?;
    let is_code = matches!(kind, "t" | "T" | "w" | "W");
    (is_code && address != 0).then_some((address, words.next()?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_function_before_it() {
        let text = "ffffffff81000200 T tcp_sendmsg\nffffffff81000100 t tcp_ack\nffffffff81000180 d data\n\
                    ffffffffc0000000 t veth_xmit\t[veth]\n";
        let symbols = KernelSymbols::parse(text);
        assert!(!symbols.is_hidden());
        assert_eq!(symbols.find(0xffff_ffff_8100_0100), Some("tcp_ack"));
        assert_eq!(symbols.find(0xffff_ffff_8100_01ff), Some("tcp_ack"));
        assert_eq!(symbols.find(0xffff_ffff_8100_0200), Some("tcp_sendmsg"));
        assert_eq!(symbols.find(0xffff_ffff_c000_0010), Some("veth_xmit"));
        assert_eq!(symbols.find(0x1000), None);
    }

    #[test]
    fn addresses_of_zero_are_hidden_ones() {
        let symbols = KernelSymbols::parse("0000000000000000 T tcp_sendmsg\n0000000000000000 t tcp_ack\n");
        assert!(symbols.is_hidden());
        assert_eq!(symbols.find(0xffff_ffff_8100_0100), None);
    }
}
