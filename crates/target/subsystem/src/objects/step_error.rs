//! Why a change of the running configuration is refused.

/// The reason why a step failed; it had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// No such subsystem.
    #[error("there is no such subsystem")]
    NoSubsystem,
    /// A subsystem with this name exists.
    #[error("there is such a subsystem already")]
    SubsystemExists,
    /// No such namespace.
    #[error("there is no such namespace")]
    NoNamespace,
    /// A namespace with this number exists.
    #[error("there is such a namespace already")]
    NamespaceExists,
    /// No such listener.
    #[error("there is no such listener")]
    NoListener,
    /// The target is stopping.
    #[error("the target is stopping")]
    Stopping,
}
