//! `nvlane kv vector`: values that are arrays of numbers, updated and reduced in place on the target.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use command_line::exit::Failure;
use command_line::output::Output;
use host::{ElementCode, Key, VectorComparison, VectorFunction};
use serde::Serialize;

use super::pairs::read;
use super::words::{self, key, shown};
use super::{Ended, Place};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nvlane kv set ADDR v 0100000002000000 --hex     (key 76 in hexadecimal)
  nvlane kv vector ADDR v update -e u32 10        adds 10 to every element
  nvlane kv vector ADDR v update -e u32 --file w  adds the elements of a file
  nvlane kv vector ADDR v reduce -e u32 -f max
  nvlane kv vector ADDR v filter -e u32 less 12")]
pub(super) struct VectorArguments {
    #[command(flatten)]
    place: Place,
    /// The key of the vector: a value that is an array of little-endian numbers.
    key: String,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Apply a function to every element, with one operand or with the corresponding element of a file.
    Update {
        /// The operand, unless --file has one for each element.
        #[arg(required_unless_present = "file", conflicts_with = "file", allow_negative_numbers = true)]
        operand: Option<String>,
        /// File with one little-endian operand per element; - for standard input.
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// add, min, max, and, or, xor.
        #[arg(short, long, default_value = "add", value_parser = function)]
        function: VectorFunction,
        #[command(flatten)]
        kind: ElementArguments,
    },
    /// Reduce all elements to one.
    Reduce {
        /// Initial value.
        #[arg(default_value = "0", allow_negative_numbers = true)]
        initial: String,
        /// add, min, max, and, or, xor.
        #[arg(short, long, default_value = "add", value_parser = function)]
        function: VectorFunction,
        #[command(flatten)]
        kind: ElementArguments,
    },
    /// Print the elements that compare as given: less, less-or-equal, equal, not-equal, greater-or-equal, greater.
    Filter {
        /// Comparison of an element with the operand.
        #[arg(value_parser = comparison)]
        comparison: VectorComparison,
        /// The operand.
        #[arg(allow_negative_numbers = true)]
        operand: String,
        #[command(flatten)]
        kind: ElementArguments,
    },
}

#[derive(Debug, Args)]
struct ElementArguments {
    /// Type of the elements: u8, u16, u32, u64, i8, i16, i32, i64, f32, f64.
    #[arg(short, long, default_value = "u64", value_parser = element)]
    element: ElementCode,
    /// The key is hexadecimal.
    #[arg(long)]
    hex: bool,
    #[command(flatten)]
    output: Output,
}

/// A code by its name on the command line.
fn named<Code: Copy>(
    word: &str,
    known: &[Code],
    name: impl Fn(Code) -> Option<&'static str>,
) -> Result<Code, String> {
    let is_it = |code: &&Code| name(**code).is_some_and(|name| name.replace(' ', "-") == word);
    known.iter().find(is_it).copied().ok_or_else(|| {
        let names: Vec<String> =
            known.iter().filter_map(|code| name(*code)).map(|name| name.replace(' ', "-")).collect();
        format!("{word:?} is none of {}", names.join(", "))
    })
}

fn element(word: &str) -> Result<ElementCode, String> {
    named(word, ElementCode::KNOWN, ElementCode::name)
}

fn function(word: &str) -> Result<VectorFunction, String> {
    named(word, VectorFunction::KNOWN, VectorFunction::name)
}

fn comparison(word: &str) -> Result<VectorComparison, String> {
    named(word, VectorComparison::KNOWN, VectorComparison::name)
}

/// Parses an element into the low bytes of a word.
fn encode(word: &str, element: ElementCode) -> Result<u64, Failure> {
    let bits = match element {
        ElementCode::F32 => word.parse::<f32>().ok().map(|number| u64::from(number.to_bits())),
        ElementCode::F64 => word.parse::<f64>().ok().map(f64::to_bits),
        _ => {
            let bits = element.bytes().unwrap_or(8) * 8;
            let is_signed =
                matches!(element, ElementCode::I8 | ElementCode::I16 | ElementCode::I32 | ElementCode::I64);
            let (least, most) = if is_signed {
                (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
            } else {
                (0, (1i128 << bits) - 1)
            };
            let number = word.parse::<i128>().ok().filter(|number| (least..=most).contains(number));
            number.and_then(|number| u64::try_from(number & ((1i128 << bits) - 1)).ok())
        }
    };
    bits.ok_or_else(|| Failure::usage(format!("{word:?} is not a value of type {element}")))
}

/// Prints the element in the low bytes of a word.
fn decode(word: u64, element: ElementCode) -> String {
    let [b0, b1, b2, b3, ..] = word.to_le_bytes();
    match element {
        ElementCode::U8 => b0.to_string(),
        ElementCode::U16 => u16::from_le_bytes([b0, b1]).to_string(),
        ElementCode::U32 => u32::from_le_bytes([b0, b1, b2, b3]).to_string(),
        ElementCode::I8 => b0.cast_signed().to_string(),
        ElementCode::I16 => i16::from_le_bytes([b0, b1]).to_string(),
        ElementCode::I32 => i32::from_le_bytes([b0, b1, b2, b3]).to_string(),
        ElementCode::I64 => word.cast_signed().to_string(),
        ElementCode::F32 => f32::from_le_bytes([b0, b1, b2, b3]).to_string(),
        ElementCode::F64 => f64::from_bits(word).to_string(),
        _ => word.to_string(),
    }
}

/// Message for a failed command on this key.
fn failed_on<'a>(key: &'a Key, kind: &'a ElementArguments) -> impl Fn(host::Error) -> Failure + 'a {
    move |error| {
        let (element, bytes) = (kind.element, kind.element.bytes().unwrap_or(1));
        let wanted = format!(
            "a usable vector of {element}: its length is not a multiple of {bytes}, differs from that of --file, or exceeds the target's limit"
        );
        words::failed(error, key, kind.hex, &wanted)
    }
}

/// Refuses bitwise functions on floating-point numbers, which no target supports.
fn check_function(function: VectorFunction, element: ElementCode) -> Result<(), Failure> {
    let is_bitwise = matches!(function, VectorFunction::AND | VectorFunction::OR | VectorFunction::XOR);
    match element {
        ElementCode::F32 | ElementCode::F64 if is_bitwise => {
            Err(Failure::usage(format!("{function} is not defined for {element}: use add, min or max")))
        }
        _ => Ok(()),
    }
}

pub(super) fn vector(arguments: &VectorArguments) -> Ended {
    let VectorArguments { place, key: word, action } = arguments;
    match action {
        Action::Update { operand, file, function, kind } => {
            let key = key(word, kind.hex)?;
            check_function(*function, kind.element)?;
            let of = (kind.element, *function);
            let bytes = match (operand, file) {
                (Some(operand), _) => {
                    let operand = encode(operand, kind.element)?;
                    place.connect()?.vector_scalar(&key, of, operand).map_err(failed_on(&key, kind))?
                }
                (None, Some(file)) => {
                    let operands = read(file)?;
                    place.connect()?.vector_vector(&key, of, &operands).map_err(failed_on(&key, kind))?;
                    operands.len() as u64
                }
                (None, None) => return Err(Failure::usage("no operand: give one, or --file")),
            };
            let elements = bytes / kind.element.bytes().unwrap_or(1) as u64;
            kind.output.print(&Updated { key: shown(&key, kind.hex), elements })?;
        }
        Action::Reduce { initial, function, kind } => {
            check_function(*function, kind.element)?;
            let key = key(word, kind.hex)?;
            let initial = encode(initial, kind.element)?;
            let result = place.connect()?.vector_reduce(&key, (kind.element, *function), initial);
            let result = result.map_err(failed_on(&key, kind))?;
            let elements = vec![decode(result, kind.element)];
            kind.output.print(&Elements { key: shown(&key, kind.hex), elements })?;
        }
        Action::Filter { comparison, operand, kind } => {
            let key = key(word, kind.hex)?;
            let operand = encode(operand, kind.element)?;
            let mut namespace = place.connect()?;
            let room = namespace.namespace().vendor().vector_bytes_max.max(1);
            let kept = namespace.vector_filter(&key, (kind.element, *comparison), operand, room);
            let kept = kept.map_err(failed_on(&key, kind))?;
            let wide = |element: &[u8]| {
                let mut word = [0; 8];
                word[..element.len()].copy_from_slice(element);
                decode(u64::from_le_bytes(word), kind.element)
            };
            let elements = kept.chunks_exact(kind.element.bytes().unwrap_or(8)).map(wide).collect();
            kind.output.print(&Elements { key: shown(&key, kind.hex), elements })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, Serialize)]
struct Updated {
    key: String,
    elements: u64,
}

impl fmt::Display for Updated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {} elements updated", self.key, self.elements)
    }
}

/// Numbers as text: some JSON readers do not hold 64-bit numbers.
#[derive(Debug, Serialize)]
struct Elements {
    key: String,
    elements: Vec<String>,
}

impl fmt::Display for Elements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.elements.iter().try_for_each(|element| writeln!(f, "{element}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_written_and_read_as_their_kind() {
        for (word, kind, bits) in [
            ("255", "u8", 0xFF),
            ("-1", "i8", 0xFF),
            ("-2", "i32", 0xFFFF_FFFE),
            ("18446744073709551615", "u64", u64::MAX),
            ("-9223372036854775808", "i64", 1 << 63),
            ("0.5", "f32", 0x3F00_0000),
            ("-1", "f64", 0xBFF0_0000_0000_0000),
        ] {
            let kind = element(kind).expect("a kind");
            assert_eq!(encode(word, kind).expect("an element"), bits, "{word}");
            assert_eq!(decode(bits, kind), word);
        }
        for (word, kind) in [("256", "u8"), ("-1", "u64"), ("128", "i8"), ("x", "f32"), ("", "u16")] {
            assert!(encode(word, element(kind).expect("a kind")).is_err(), "{word} as {kind}");
        }
    }

    #[test]
    fn codes_are_named_as_the_document_names_them() {
        assert_eq!(comparison("less-or-equal"), Ok(VectorComparison::LESS_OR_EQUAL));
        assert_eq!(function("xor"), Ok(VectorFunction::XOR));
        assert_eq!(function("mul").unwrap_err(), r#""mul" is none of add, min, max, and, or, xor"#);
    }
}
