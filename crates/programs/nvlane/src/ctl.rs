//! `nvlane ctl`: sees and changes what a running target serves, through its control socket.
//!
//! Nouns, verbs and options are made from the table of nouns, so that all of them work alike.

pub(crate) mod client;
mod names;
mod shown;
mod volumes;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use command_line::control_place::ControlOptions;
use command_line::exit::{Ended, Failure};
use command_line::output::{Output, write, write_json};
use control::noun::{Form, Key, NOUNS, Noun};
use serde_json::{Map, Value, json};
use store::{Size, Source, Spec};

use self::client::Client;
use self::shown::{Changed, Differences, Objects};

const HELP: &str = "\
  nvlane target --config nvlane.toml --control /run/nvlane/control.sock
  nvlane ctl namespace list
  nvlane ctl namespace add --size 10G                        in memory, under the lowest free number
  nvlane ctl namespace add --storage file:/srv/a.img --size 100G
  nvlane ctl namespace set 2 --size 200G
  nvlane ctl subsystem add nqn.2026-01.com.example:disks --hosts any
  nvlane ctl host add nqn.2026-01.com.example:web-1 --dhchap-secret file:/etc/nvlane/web-1.key
  nvlane ctl listener add 192.0.2.1:4420
  nvlane ctl limit set --connections 1000
  nvlane ctl namespace remove 2
  nvlane ctl volume create fast/db --size 100G               in a pool; see nvlane ctl volume --help
  nvlane ctl --control tls://ops@192.0.2.1:9421 --control-key ops.key diff       on another machine
  nvlane ctl diff                                            what differs from the configuration file
  nvlane ctl export > nvlane.toml                            one file of all

A change is applied as a reload applies it: as a whole, or not at all. The target keeps it and makes it again at its next start; its \
configuration file stays untouched, and wins where it was edited since. Secrets are references (file:PATH), and are never shown.
With --revision N a change is refused if somebody else has changed anything since: list and show print the revision.

Exit codes: 0 done, 1 refused by the target, 2 wrong options or values, 4 no target at the socket. In all but the first nothing was changed.";

/// What is to be done: clap's matches, as nouns and options come from a table.
#[derive(Clone, Debug)]
pub(crate) struct CtlArguments(ArgMatches);

impl FromArgMatches for CtlArguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(matches.clone()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0 = matches.clone();
        Ok(())
    }
}

impl Args for CtlArguments {
    fn augment_args(command: Command) -> Command {
        let command = Output::augment_args(ControlOptions::augment_args(command));
        let command = command.mut_args(|arg| {
            match ["format", "control", "control_key"].contains(&arg.get_id().as_str()) {
                true => arg.global(true),
                false => arg,
            }
        });
        let timeout = Arg::new("timeout")
            .long("timeout")
            .value_name("SECONDS")
            .default_value("60")
            .value_parser(value_parser!(u64).range(1..=86_400))
            .global(true)
            .help("Seconds to wait for the target");
        // Not `subcommand_required`, whose error lists all aliases.
        let command = command.arg(timeout).after_help(HELP).arg_required_else_help(true);
        let command = NOUNS.iter().fold(command, |command, noun| command.subcommand(noun_command(noun)));
        let command = command.subcommands(volumes::commands());
        command
            .subcommand(Command::new("diff").about("Show what differs from the configuration file"))
            .subcommand(Command::new("export").about("Print the configuration with all changes, as TOML"))
            .subcommand(
                Command::new("reload")
                    .about("Make the target reread its configuration file and all secrets")
                    .arg(force()),
            )
            .subcommand(Command::new("state").about("Print the target's state and counters, as JSON"))
            .subcommand(
                Command::new("call")
                    .about("Call a method as it is: nvlane's, or SPDK's, such as nvmf_get_subsystems")
                    .arg(Arg::new("method").value_name("METHOD").required(true))
                    .arg(Arg::new("params").value_name("JSON").help("Its parameters, a JSON object")),
            )
            .subcommand(
                Command::new("names")
                    .about("Print the names that may follow these words of a command line")
                    .hide(true)
                    .arg(Arg::new("words").num_args(0..).trailing_var_arg(true).allow_hyphen_values(true)),
            )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn force() -> Arg {
    Arg::new("force")
        .long("force")
        .action(ArgAction::SetTrue)
        .help("Remove also what connected hosts use: they lose their disks")
}

fn noun_command(noun: &'static Noun) -> Command {
    let verb = |name: &'static str, about: &'static str| {
        let command = Command::new(name).about(about);
        match noun.in_subsystem {
            true => command.arg(
                Arg::new("subsystem")
                    .long("subsystem")
                    .short('s')
                    .value_name("NQN")
                    .help("Its subsystem; not needed if there is only one"),
            ),
            false => command,
        }
    };
    let name = |is_required: bool| {
        Arg::new("name")
            .value_name(match noun.id {
                Some("nsid") => "NSID",
                Some("address") => "ADDR",
                Some("name") => "NAME",
                _ => "NQN",
            })
            .required(is_required)
            .help(if is_required { "Its name" } else { "Its number; by default the lowest free one" })
    };
    let revision = || {
        Arg::new("revision")
            .long("revision")
            .value_name("NUMBER")
            .value_parser(value_parser!(u64))
            .help("Refuse the change if the configuration has another revision")
    };
    let with_keys = |command: Command| {
        let command = noun.keys.iter().fold(command, |command, key| command.arg(key_option(key)));
        match noun.name == "namespace" {
            true => command.arg(
                Arg::new("size")
                    .long("size")
                    .value_name("SIZE")
                    .value_parser(|text: &str| Size::parse(text).map_err(|(_, why)| why))
                    .help("Size, such as 10G; without storage, in memory (ram:SIZE)"),
            ),
            false => command,
        }
    };
    let unset = || {
        Arg::new("unset")
            .long("unset")
            .value_name("KEY")
            .action(ArgAction::Append)
            .value_parser(noun.keys.iter().map(|key| key.name).collect::<Vec<_>>())
            .hide_possible_values(true)
            .help("Give a key its default")
    };
    let command = Command::new(noun.name)
        .alias(word(noun.name))
        .about(noun.about)
        .subcommand_required(true)
        .arg_required_else_help(true);
    let set = with_keys(verb("set", "Change values")).arg(unset()).arg(revision());
    if noun.id.is_none() {
        return command
            .subcommand(verb("show", "Show the values that are no defaults").visible_alias("list"))
            .subcommand(set);
    }
    command
        .subcommand(verb("list", "List all"))
        .subcommand(verb("show", "Show one").arg(name(true)))
        .subcommand(with_keys(verb("add", "Add one").arg(name(noun.name != "namespace"))).arg(revision()))
        .subcommand(set.arg(name(true)))
        .subcommand(verb("remove", "Remove one").arg(name(true)).arg(force()).arg(revision()))
}

/// Words of options and plurals, made once: clap keeps references.
static WORDS: LazyLock<BTreeMap<&'static str, String>> = LazyLock::new(|| {
    let plurals = NOUNS.iter().map(|noun| (noun.name, format!("{}s", noun.name)));
    let keys = NOUNS.iter().flat_map(|noun| noun.keys);
    let keys = keys.filter(|key| key.name.contains('_'));
    plurals.chain(keys.map(|key| (key.name, key.name.replace('_', "-")))).collect()
});

fn word(of: &'static str) -> &'static str {
    WORDS.get(of).map_or(of, String::as_str)
}

fn key_option(key: &'static Key) -> Arg {
    let option = Arg::new(key.name).value_name(key.value_name).help(key.about).action(ArgAction::Set);
    let long = if key.name.contains('_') { word(key.name) } else { key.name };
    let option = if long == key.name { option.long(long) } else { option.long(long).alias(key.name) };
    option.value_parser(move |text: &str| value_of(key.form, text))
}

/// A value as JSON.
fn value_of(form: Form, text: &str) -> Result<Value, String> {
    let list = |text: &str| {
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        Value::from(words.collect::<Vec<_>>())
    };
    match form {
        Form::Text => Ok(text.into()),
        Form::Number => text.parse::<u64>().map(Value::from).map_err(|_| "write a whole number".into()),
        Form::Flag => text.parse::<bool>().map(Value::from).map_err(|_| "write true or false".into()),
        Form::Texts => Ok(list(text)),
        Form::Hosts if text == "any" => Ok(text.into()),
        Form::Hosts => Ok(list(text)),
        Form::Range => {
            let ends = text
                .split_once('-')
                .and_then(|(first, last)| Some((first.parse::<u16>().ok()?, last.parse::<u16>().ok()?)));
            ends.map(|(first, last)| json!([first, last]))
                .ok_or_else(|| "write two numbers, such as 1-100".into())
        }
        Form::Table => serde_json::from_str(text).map_err(|error| format!("this is no JSON: {error}")),
    }
}

/// The deepest matches, which have the values of global options.
fn deepest(matches: &ArgMatches) -> &ArgMatches {
    matches.subcommand().map_or(matches, |(_, below)| deepest(below))
}

pub(crate) fn ctl(arguments: &CtlArguments) -> Ended {
    let deepest = deepest(&arguments.0);
    let output = Output::from_arg_matches(deepest).map_err(Failure::usage)?;
    let target = ControlOptions::from_arg_matches(deepest).map_err(Failure::usage)?;
    let seconds = deepest.get_one::<u64>("timeout").copied().unwrap_or(60);
    if let Some(("names", matches)) = arguments.0.subcommand() {
        let words: Vec<String> = matches.get_many("words").into_iter().flatten().cloned().collect();
        names::names(&words, target)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (noun, matches) = arguments.0.subcommand().ok_or_else(|| {
        Failure::usage("say what to see or change, as in `nvlane ctl namespace list`: see --help")
    })?;
    let mut client = Client::connect(&target, Duration::from_secs(seconds))?;
    match noun {
        "diff" => output.print(&Differences(client.call("diff", &Map::new())?))?,
        "export" => {
            let exported = client.call("export", &Map::new())?;
            write(exported["toml"].as_str().unwrap_or_default())?;
        }
        "state" => {
            write_json(&client.call("state", &Map::new())?)?;
        }
        "reload" => {
            let params = Map::from_iter([("force".to_owned(), matches.get_flag("force").into())]);
            let answer = client.call("reload", &params)?;
            let is_complete = answer["is_complete"] == true;
            output.print(&Changed(answer))?;
            if !is_complete {
                return Err(Failure::new(command_line::exit::Kind::Failed, "not every change is in place"));
            }
        }
        "call" => {
            let method = matches.get_one::<String>("method").map_or("", String::as_str);
            let params = matches.get_one::<String>("params").map_or("{}", String::as_str);
            let params = serde_json::from_str(params)
                .map_err(|error| Failure::usage(format!("the parameters are no JSON object: {error}")))?;
            write_json(&client.call(method, &params)?)?;
        }
        "volume" | "snapshot" => volumes::perform(noun, matches, &mut client, &output)?,
        "pool" if matches.subcommand_name() == Some("list") => volumes::list_pools(&mut client, &output)?,
        _ => of_noun(noun, matches, &mut client, &output)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn of_noun(noun: &str, matches: &ArgMatches, client: &mut Client, output: &Output) -> Result<(), Failure> {
    let (Some(noun), Some((verb, matches))) = (Noun::named(noun), matches.subcommand()) else {
        return Err(Failure::usage("name a verb: nvlane ctl --help"));
    };
    let mut params = Map::from_iter([("noun".to_owned(), Value::from(noun.name))]);
    for word in ["subsystem", "name"] {
        if let Ok(Some(text)) = matches.try_get_one::<String>(word) {
            params.insert(word.into(), text.as_str().into());
        }
    }
    match verb {
        "list" if noun.id.is_some() => return output.print(&Objects(noun, client.call("list", &params)?)),
        "list" | "show" => return output.print(&shown::Object(client.call("show", &params)?)),
        _ => {}
    }
    let verb = match verb {
        "add" | "set" => {
            let values = values_of(noun, verb, matches, &params, client)?;
            params.insert("values".into(), values.into());
            verb
        }
        other => {
            params.insert("force".into(), matches.get_flag("force").into());
            other
        }
    };
    if let Some(revision) = matches.get_one::<u64>("revision") {
        params.insert("revision".into(), (*revision).into());
    }
    let answer = client.call(verb, &params)?;
    if answer["kept"] == false {
        eprintln!("nvlane: the change ends with the target, which keeps none: start it with --changes FILE");
    }
    output.print(&Changed(answer))
}

/// The values that options give.
fn values_of(
    noun: &Noun,
    verb: &str,
    matches: &ArgMatches,
    params: &Map<String, Value>,
    client: &mut Client,
) -> Result<Map<String, Value>, Failure> {
    let mut values = Map::new();
    for key in noun.keys {
        if let Some(value) = matches.get_one::<Value>(key.name) {
            values.insert(key.name.to_owned(), value.clone());
        }
    }
    if verb == "set" {
        for key in matches.get_many::<String>("unset").into_iter().flatten() {
            values.insert(key.clone(), Value::Null);
        }
    }
    if let Ok(Some(Size(bytes))) = matches.try_get_one::<Size>("size") {
        let storage = match (values.get("storage").and_then(Value::as_str), verb) {
            (Some(storage), _) => storage.to_owned(),
            (None, "add") => format!("ram:{bytes}"),
            (None, _) => {
                let shown = client.call("show", params)?;
                shown["values"]["storage"].as_str().unwrap_or_default().to_owned()
            }
        };
        values.insert("storage".into(), with_size(&storage, *bytes)?.into());
    }
    Ok(values)
}

/// A specification of storage with another size.
fn with_size(storage: &str, bytes: u64) -> Result<String, Failure> {
    let mut spec = storage.parse::<Spec>().map_err(Failure::usage)?;
    match &mut spec.source {
        Source::Memory { bytes: known, .. }
        | Source::Null { bytes: known }
        | Source::KeyValue { bytes: known, .. } => {
            *known = bytes;
        }
        Source::File { bytes: known, .. } | Source::KeyValueFile { bytes: known, .. } => *known = Some(bytes),
        Source::Device { .. } => {
            return Err(Failure::usage("a device has its own size: leave --size out"));
        }
        Source::Nbd(_) | Source::VhostUser(_) => {
            return Err(Failure::usage("it has the size that its server gives it: leave --size out"));
        }
        Source::KeyValueRados(_) => {
            return Err(Failure::usage("keys in a cluster have the room of their pool: leave --size out"));
        }
        Source::Rbd(_) => {
            return Err(Failure::usage(
                "an image has its own size, which rbd resize changes: leave --size out",
            ));
        }
        Source::Volume { .. } => {
            return Err(Failure::usage(
                "a volume has its own size: nvlane ctl volume resize makes it larger, for the namespace too",
            ));
        }
    }
    Ok(spec.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        CtlArguments::augment_args(Command::new("ctl")).debug_assert();
    }

    #[test]
    fn values_have_the_form_of_their_keys() {
        let of = |form, text: &str| value_of(form, text).map_err(|_| ());
        assert_eq!(of(Form::Hosts, "any"), Ok(json!("any")));
        assert_eq!(of(Form::Hosts, "a, b"), Ok(json!(["a", "b"])));
        assert_eq!(of(Form::Hosts, ""), Ok(json!([])));
        assert_eq!(of(Form::Number, "7"), Ok(json!(7)));
        assert_eq!(of(Form::Flag, "true"), Ok(json!(true)));
        assert_eq!(of(Form::Range, "1-9"), Ok(json!([1, 9])));
        assert_eq!(of(Form::Table, "{\"a\":[\"x\"]}"), Ok(json!({ "a": ["x"] })));
        for (form, text) in [(Form::Number, "x"), (Form::Flag, "yes"), (Form::Range, "1"), (Form::Table, "{")]
        {
            assert_eq!(of(form, text), Err(()), "{text}");
        }
    }

    #[test]
    fn a_size_takes_its_place_in_storage() {
        let of = |storage: &str| with_size(storage, 1 << 30).map_err(|failure| failure.to_string());
        assert_eq!(of("ram:1M?lba=512"), Ok("ram:1G?lba=512".into()));
        assert_eq!(of("file:/a"), Ok("file:/a?size=1G".into()));
        assert_eq!(of("kv:file:/a?size=2M"), Ok("kv:file:/a?size=1G".into()));
        assert!(of("device:/dev/x").is_err());
    }
}
