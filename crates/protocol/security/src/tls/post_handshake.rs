//! Messages of the handshake protocol after the handshake: tickets, which are not used, and new keys. RFC 8446 section 4.6

use super::Alert;
use super::record_error::RecordError;

const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// The request of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Records after this one have the next key.
    KeyUpdate {
        /// This end is to change its key, too.
        wants_answer: bool,
    },
}

impl Message {
    /// A KeyUpdate that asks for none in return.
    pub(super) const KEY_UPDATE: [u8; 5] = [KEY_UPDATE, 0, 0, 1, 0];
}

/// The message that is being received.
#[derive(Debug, Default)]
pub(super) struct PostHandshake {
    /// Its type and length, as far as they are there.
    header: [u8; 4],
    header_bytes: usize,
    /// Bytes of the body to come.
    left: usize,
}

impl PostHandshake {
    /// Whether a message has begun and not ended.
    pub(super) const fn is_within_message(&self) -> bool {
        self.header_bytes > 0
    }

    /// Takes the content of a record. Returns a KeyUpdate, which is the last message of a record.
    pub(super) fn take(&mut self, is_host: bool, mut content: &[u8]) -> Result<Option<Message>, RecordError> {
        let unexpected = |message| Err(RecordError::Broken(message, Alert::UNEXPECTED_MESSAGE));
        if content.is_empty() {
            return unexpected("an empty record of the handshake");
        }
        while let Some((&byte, rest)) = content.split_first() {
            if let Some(place) = self.header.get_mut(self.header_bytes) {
                *place = byte;
                self.header_bytes = self.header_bytes.saturating_add(1);
                content = rest;
                let [kind, high, middle, low] = self.header;
                if self.header_bytes == self.header.len() {
                    self.left =
                        usize::try_from(u32::from_be_bytes([0, high, middle, low])).unwrap_or(usize::MAX);
                    match kind {
                        NEW_SESSION_TICKET if is_host => {}
                        KEY_UPDATE if self.left == 1 => {}
                        KEY_UPDATE => {
                            return Err(RecordError::Broken("a malformed KeyUpdate", Alert::DECODE_ERROR));
                        }
                        _ => return unexpected("a message that does not belong after the handshake"),
                    }
                }
            } else {
                let [kind, ..] = self.header;
                let count = self.left.min(content.len());
                content = content.get(count..).unwrap_or_default();
                self.left = self.left.saturating_sub(count);
                if kind == KEY_UPDATE {
                    self.header_bytes = 0;
                    let wants_answer = match byte {
                        0 => false,
                        1 => true,
                        _ => {
                            return Err(RecordError::Broken(
                                "a malformed KeyUpdate",
                                Alert::ILLEGAL_PARAMETER,
                            ));
                        }
                    };
                    if !content.is_empty() {
                        return unexpected("a KeyUpdate is not the end of its record");
                    }
                    return Ok(Some(Message::KeyUpdate { wants_answer }));
                }
            }
            if self.header_bytes == self.header.len() && self.left == 0 {
                self.header_bytes = 0;
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alert_of(is_host: bool, content: &[u8]) -> Option<Alert> {
        match PostHandshake::default().take(is_host, content) {
            Err(RecordError::Broken(_, alert)) => Some(alert),
            _ => None,
        }
    }

    #[test]
    fn tickets_are_skipped_in_any_pieces_and_key_updates_are_found() {
        let update = Some(Message::KeyUpdate { wants_answer: true });
        let messages = [&[4, 0, 0, 3, 9, 9, 9][..], &[4, 0, 0, 0], &[24, 0, 0, 1, 1]].concat();
        for cut in 1..messages.len() {
            let mut state = PostHandshake::default();
            let (first, rest) = messages.split_at(cut);
            assert_eq!(state.take(true, first), Ok(None));
            assert_eq!(state.is_within_message(), ![7, 11].contains(&cut), "{cut}");
            assert_eq!(state.take(true, rest), Ok(update));
            assert!(!state.is_within_message());
        }
    }

    #[test]
    fn what_does_not_belong_there_is_refused() {
        assert_eq!(alert_of(true, &[]), Some(Alert::UNEXPECTED_MESSAGE));
        // A ticket for a target, a ClientHello, data behind a KeyUpdate.
        assert_eq!(alert_of(false, &[4, 0, 0, 1]), Some(Alert::UNEXPECTED_MESSAGE));
        assert_eq!(alert_of(true, &[1, 0, 0, 1]), Some(Alert::UNEXPECTED_MESSAGE));
        assert_eq!(alert_of(true, &[24, 0, 0, 1, 0, 4]), Some(Alert::UNEXPECTED_MESSAGE));
        assert_eq!(alert_of(true, &[24, 0, 0, 1, 2]), Some(Alert::ILLEGAL_PARAMETER));
        assert_eq!(alert_of(true, &[24, 0, 0, 2, 0, 0]), Some(Alert::DECODE_ERROR));
        assert_eq!(alert_of(true, &[24, 0, 0, 0]), Some(Alert::DECODE_ERROR));
    }
}
