//! `google.protobuf.Timestamp`.

/// A moment since 1970, UTC.
#[derive(Clone, Copy, PartialEq, Eq, ::prost::Message)]
pub(crate) struct Timestamp {
    /// Whole seconds.
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    /// The rest, nanoseconds.
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}
