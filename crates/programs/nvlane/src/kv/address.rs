//! The address of verbs whose next argument is a key: the first argument if it is an address, else `$NVLANE_ADDR`.
//!
//! A key has at most 16 bytes and an address of a subsystem more, so neither is taken for the other.

use std::ffi::OsString;

use clap::{Arg, Command};
use command_line::exit::Failure;

/// Verbs of `kv` whose address is followed by other arguments.
const VERBS: [&str; 10] = ["get", "set", "delete", "exist", "pin", "unpin", "incr", "cas", "vector", "load"];

/// Inserts the address from the environment where a verb of `kv` needs one and has none.
///
/// # Errors
/// If there is none in the environment either.
pub(crate) fn complete(
    mut words: Vec<OsString>,
    program: &Command,
    environment: Option<OsString>,
) -> Result<Vec<OsString>, Failure> {
    let Some(at) = place(&words, program) else { return Ok(words) };
    let Some(kv) = program.find_subcommand("kv") else { return Ok(words) };
    let verb = words.get(at).and_then(|word| word.to_str()).and_then(|word| kv.find_subcommand(word));
    let Some(verb) = verb.filter(|verb| VERBS.contains(&verb.get_name())) else { return Ok(words) };
    let rest = &words[at + 1..];
    if rest.iter().any(|word| word == "--help" || word == "-h") {
        return Ok(words);
    }
    let first = first_positional(rest, verb);
    if first.is_some_and(is_address) {
        return Ok(words);
    }
    match environment.filter(|address| !address.is_empty()) {
        Some(address) => {
            words.insert(at + 1, address);
            Ok(words)
        }
        // An address without a subsystem is treated as an address.
        None if first.is_some_and(|word| word.len() > 16 || word.to_str().is_some_and(has_port)) => Ok(words),
        None => Err(Failure::usage(format!(
            "no address: write HOST[:PORT]/NQN after `kv {}`, or set NVLANE_ADDR",
            verb.get_name()
        ))),
    }
}

/// Position of the verb of `kv`; `None` for other commands.
fn place(words: &[OsString], program: &Command) -> Option<usize> {
    let kv = 1 + first_index(words.get(1..)?, program)?;
    (words[kv] == "kv").then_some(kv + 1)
}

fn first_positional<'a>(words: &'a [OsString], command: &Command) -> Option<&'a OsString> {
    first_index(words, command).map(|index| &words[index])
}

/// The first word that is neither an option nor the value of one.
fn first_index(words: &[OsString], command: &Command) -> Option<usize> {
    let mut is_value = false;
    for (index, word) in words.iter().enumerate() {
        let text = word.to_string_lossy();
        if std::mem::take(&mut is_value) {
            continue;
        }
        match text.strip_prefix('-') {
            Some("-") => return (index + 1 < words.len()).then_some(index + 1),
            Some(option) if !option.is_empty() => is_value = takes_next(option, command),
            _ => return Some(index),
        }
    }
    None
}

/// Whether the word after this option (without its first dash) is its value.
fn takes_next(option: &str, command: &Command) -> bool {
    let takes = |arg: Option<&Arg>| arg.is_some_and(|arg| arg.get_action().takes_values());
    let mut args = command.get_arguments();
    match option.strip_prefix('-') {
        Some(long) if long.contains('=') => false,
        Some(long) => takes(args.find(|arg| {
            arg.get_long() == Some(long) || arg.get_all_aliases().is_some_and(|all| all.contains(&long))
        })),
        // Letters together: the last one may have its value behind it.
        None => {
            takes(option.chars().last().and_then(|letter| args.find(|arg| arg.get_short() == Some(letter))))
        }
    }
}

/// Whether a word is an address with a subsystem.
fn is_address(word: &OsString) -> bool {
    word.to_str().is_some_and(|word| {
        word.contains("/nqn.")
            || ["nvme+tcp://", "traddr:", "trtype:"].iter().any(|start| word.starts_with(start))
    })
}

/// Whether it ends with a port, or is an IP address.
fn has_port(word: &str) -> bool {
    word.parse::<std::net::SocketAddr>().is_ok() || word.parse::<std::net::IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    const HERE: &str = "127.0.0.1:4420/nqn.2026-01.io.nvlane:target";
    const THERE: &str = "[::1]:4420/nqn.2026-01.io.nvlane:other?ns=2";

    fn complete(line: &str, environment: Option<&str>) -> Result<String, Failure> {
        let words = line.split_whitespace().map(OsString::from).collect();
        let words = super::complete(words, &crate::Cli::command(), environment.map(Into::into))?;
        Ok(words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn the_environment_fills_in_what_is_left_out() {
        for (line, wanted) in [
            ("nvlane kv get key", format!("nvlane kv get {HERE} key")),
            ("nvlane kv get --timeout 5 key", format!("nvlane kv get {HERE} --timeout 5 key")),
            ("nvlane --log warn kv set a b", format!("nvlane --log warn kv set {HERE} a b")),
            ("nvlane kv set -H --file x a", format!("nvlane kv set {HERE} -H --file x a")),
            ("nvlane kv incr visits", format!("nvlane kv incr {HERE} visits")),
            ("nvlane kv load pairs.jsonl", format!("nvlane kv load {HERE} pairs.jsonl")),
            ("nvlane kv load", format!("nvlane kv load {HERE}")),
            ("nvlane kv vector w reduce -e u32", format!("nvlane kv vector {HERE} w reduce -e u32")),
            ("nvlane kv get 10.0.0.1", format!("nvlane kv get {HERE} 10.0.0.1")),
        ] {
            assert_eq!(complete(line, Some(HERE)).unwrap(), wanted);
        }
    }

    #[test]
    fn an_argument_comes_before_the_environment() {
        for verb in VERBS {
            let line = format!("nvlane kv {verb} --timeout=5 {THERE} key");
            assert_eq!(complete(&line, Some(HERE)).unwrap(), line);
        }
        let spdk = "nvlane kv get traddr:127.0.0.1 key";
        assert_eq!(complete(spdk, Some(HERE)).unwrap(), spdk);
    }

    #[test]
    fn other_commands_are_left_as_they_are() {
        for line in [
            "nvlane",
            "nvlane kv",
            "nvlane kv list",
            "nvlane kv get --help",
            "nvlane perf -q 3",
            "nvlane kv gte x",
        ] {
            assert_eq!(complete(line, Some(HERE)).unwrap(), line);
        }
    }

    #[test]
    fn without_any_address_the_error_says_how_to_give_one() {
        for line in ["nvlane kv get key", "nvlane kv set user:17 x", "nvlane kv load"] {
            let message = complete(line, None).unwrap_err().to_string();
            assert!(message.contains("NVLANE_ADDR") && message.contains("HOST[:PORT]/NQN"), "{message}");
        }
        // Its subsystem is missing: a later check reports that.
        assert!(complete("nvlane kv get 127.0.0.1:4420 key", None).is_ok());
    }
}
