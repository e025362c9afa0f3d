//! The protection of a connection, and whether the target may serve it.

/// The protection of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Channel {
    /// No protection.
    #[default]
    Clear,
    /// By the configured key with this number.
    Configured(u8),
    /// By a key that an authentication has generated.
    Generated,
}

/// Whether the target may serve a connection, by its key and that of the target when its first reactor took it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Right {
    /// It must.
    #[default]
    Serve,
    /// Its keys were being changed, or it may have forgotten this one.
    Either,
    /// It must not.
    Refuse,
}
