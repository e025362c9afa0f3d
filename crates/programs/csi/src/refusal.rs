//! Why a call is refused: statuses of gRPC, as the interface's specification assigns them.

use tonic::Status;

/// A field of the request is wrong: says which one, and what would be right.
pub(crate) fn invalid(field: &str, right: impl std::fmt::Display) -> Status {
    Status::invalid_argument(format!("{field}: {right}"))
}

/// A text that must be there.
pub(crate) fn required<'a>(field: &str, text: &'a str, example: &str) -> Result<&'a str, Status> {
    match text {
        "" => Err(invalid(field, format_args!("missing, such as {example}"))),
        text => Ok(text),
    }
}
