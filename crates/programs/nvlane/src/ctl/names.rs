//! `nvlane ctl names`, which completion scripts call: the names that may follow the words of a command line.

use std::time::Duration;

use command_line::control_place::{ControlOptions, ControlPlace};
use command_line::exit::Failure;
use command_line::output::write;
use control::noun::Noun;
use serde_json::{Map, Value};
use wire::text::is_hidden;

use super::client::Client;

/// How long a person who presses Tab waits for a target.
const ANSWER_TIME: Duration = Duration::from_secs(1);

/// Verbs that are followed by a name that exists.
const VERBS: [&str; 3] = ["show", "set", "remove"];

/// What a command line asks for at its end.
struct Wish {
    noun: &'static Noun,
    subsystem: Option<String>,
    target: ControlOptions,
}

impl Wish {
    /// What may follow these words; `None` if that is no name.
    fn of(words: &[String], mut target: ControlOptions) -> Option<Self> {
        let mut rest = words.iter().skip_while(|word| *word != "ctl").skip(1);
        let (mut plain, mut subsystem) = (Vec::new(), None);
        while let Some(word) = rest.next() {
            let (option, value) = match word.split_once('=') {
                Some((option, value)) if option.starts_with("--") => (option, Some(value.to_owned())),
                _ => (word.as_str(), None),
            };
            let mut value = || value.clone().or_else(|| rest.next().cloned());
            match option {
                "-s" | "--subsystem" => match value() {
                    Some(nqn) => subsystem = Some(nqn),
                    None => return Some(Self { noun: Noun::named("subsystem")?, subsystem: None, target }),
                },
                "--control" => target.control = ControlPlace::named(value()?.into()).ok()?,
                "--control-key" => target.control_key = Some(value()?.into()),
                "--force" => {}
                option if option.starts_with('-') => drop(value()?),
                _ => plain.push(word.as_str()),
            }
        }
        let [noun, verb] = plain[..] else { return None };
        let noun = Noun::named(noun).filter(|noun| noun.id.is_some() && VERBS.contains(&verb))?;
        Some(Self { noun, subsystem, target })
    }
}

/// Prints the names, one per line; nothing if no target answers.
pub(super) fn names(words: &[String], target: ControlOptions) -> Result<(), Failure> {
    let Some(wish) = Wish::of(words, target) else { return Ok(()) };
    let mut params = Map::from_iter([("noun".to_owned(), Value::from(wish.noun.name))]);
    if let Some(nqn) = wish.subsystem.filter(|_| wish.noun.in_subsystem) {
        params.insert("subsystem".into(), nqn.into());
    }
    let listed =
        Client::connect(&wish.target, ANSWER_TIME).and_then(|mut client| client.call("list", &params));
    let Ok(listed) = listed else { return Ok(()) };
    let objects = listed["objects"].as_array().map_or(&[][..], Vec::as_slice);
    // A shell takes lines, and names of hosts may have spaces.
    let is_word = |name: &&str| !name.contains(|char: char| char.is_whitespace() || is_hidden(char));
    let mut names: Vec<&str> =
        objects.iter().filter_map(|object| object["name"].as_str()).filter(is_word).collect();
    names.sort_unstable();
    names.dedup();
    write(names.iter().map(|name| format!("{name}\n")).collect::<String>())
}

#[cfg(test)]
mod tests {
    use command_line::control_place::CONTROL_SOCKET;

    use super::*;

    #[test]
    fn words_tell_which_names_may_follow() {
        let of = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let target = ControlOptions::of_socket(CONTROL_SOCKET.as_ref());
            Wish::of(&words, target)
                .map(|wish| (wish.noun.name, wish.subsystem, wish.target.control.to_string()))
        };
        let found = |noun, subsystem: Option<&str>, socket: &str| {
            Some((noun, subsystem.map(str::to_owned), socket.to_owned()))
        };
        assert_eq!(of("nvlane ctl namespace show"), found("namespace", None, CONTROL_SOCKET));
        assert_eq!(of("nvlane --log warn ctl --control /c hosts remove --force"), found("host", None, "/c"));
        assert_eq!(of("ctl namespace -s a set --size 1G"), found("namespace", Some("a"), CONTROL_SOCKET));
        assert_eq!(of("ctl namespace set --subsystem=a"), found("namespace", Some("a"), CONTROL_SOCKET));
        assert_eq!(of("ctl namespace list -s"), found("subsystem", None, CONTROL_SOCKET));
        assert_eq!(of("ctl namespace add --subsystem"), found("subsystem", None, CONTROL_SOCKET));
        assert_eq!(
            of("ctl --control tls://ops@[::1]:1 --control-key k namespace show"),
            found("namespace", None, "tls://ops@[::1]:1")
        );
        for line in [
            "",
            "nvlane",
            "nvlane ctl",
            "nvlane ctl namespace",
            "nvlane ctl namespace add",
            "nvlane ctl namespace show 1",
            "nvlane ctl limit show",
            "nvlane ctl nothing show",
            "nvlane ctl namespace set --size",
            "nvlane ctl --control",
        ] {
            assert_eq!(of(line), None, "{line}");
        }
    }
}
