//! `nvlane completions`: the script of clap, and names of a running target for `nvlane ctl`.

use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;
use command_line::exit::Ended;
use command_line::manual::CompletionsArguments;
use command_line::output::write;

/// For bash: what the script finds, and names. A name has colons, at which bash divides words.
const BASH: &str = r#"
# Names of a running target: nvlane ctl NOUN show|set|remove NAME, and --subsystem NQN.
_nvlane_ctl() {
    _nvlane "$@"
    local line="${COMP_LINE:0:COMP_POINT}" word name names
    word="${line##*[[:space:]]}"
    [[ " $line" == *" ctl "* && "$word" != -* ]] || return 0
    local -a words
    read -ra words <<< "${line%"$word"}"
    names=$("${words[0]}" ctl names -- "${words[@]:1}" 2>/dev/null) || return 0
    for name in $names; do
        [[ "$name" == "$word"* ]] && COMPREPLY+=("${name#"${word%"${word##*:}"}"}")
    done
}
complete -F _nvlane_ctl -o bashdefault -o default nvlane
"#;

/// For zsh: what completes a name. The arguments of its script are these functions instead of files.
const ZSH: &str = r#"
# Names of a running target: nvlane ctl NOUN show|set|remove NAME, and --subsystem NQN.
_nvlane_names() {
    local -a typed names
    typed=(${(z)LBUFFER})
    [[ "$LBUFFER" == *[[:space:]] ]] || typed[-1]=()
    names=(${(f)"$(${typed[1]} ctl names -- ${typed[2,-1]} 2>/dev/null)"})
    compadd -a names
}
"#;

/// The places of a zsh script that [`ZSH`] completes.
const ZSH_PLACES: [(&str, &str); 2] = [
    (":name -- Its name:_default", ":name -- Its name:_nvlane_names"),
    ("not needed if there is only one]:NQN:_default", "not needed if there is only one]:NQN:_nvlane_names"),
];

pub(crate) fn completions(arguments: &CompletionsArguments, command: &mut Command) -> Ended {
    write(script(arguments.shell, command))?;
    Ok(ExitCode::SUCCESS)
}

fn script(shell: Shell, command: &mut Command) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, command, "nvlane", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => script + BASH,
        Shell::Zsh => {
            let script = ZSH_PLACES.iter().fold(script, |script, (from, to)| script.replace(from, to));
            // Its last lines run it.
            match script.rfind("\nif [ \"$funcstack[1]\"") {
                Some(at) => format!("{}{ZSH}{}", &script[..at], &script[at..]),
                None => script,
            }
        }
        _ => script,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn the_script_of_zsh_asks_for_names() {
        let script = script(Shell::Zsh, &mut Cli::command());
        for (before, after) in ZSH_PLACES {
            assert!(script.contains(after) && !script.contains(before), "{after}");
        }
        let at = |text: &str| script.find(text).unwrap_or_else(|| panic!("no {text}"));
        assert!(at("_nvlane_names() {") < at("if [ \"$funcstack[1]\""));
    }
}
