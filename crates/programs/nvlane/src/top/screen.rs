//! The terminal: its modes, its keys, and what is drawn on it.
//!
//! It is restored on every way out but SIGKILL: when the screen is dropped, and by a hook on a panic, which ends the program.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::Cell;
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::{Color, Modifier};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};

/// The alternate screen, without a cursor and without wrapping; and back.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &[u8] = b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The modes of the terminal before, as long as they are to be restored.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Whether a program can draw on standard output, and read keys from standard input.
pub(super) fn is_there() -> bool {
    let can_draw = std::env::var_os("TERM").is_none_or(|name| name != "dumb");
    can_draw && io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Left,
    Right,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Tab,
    BackTab,
    /// Control and C or D.
    Interrupt,
}

/// The keys that bytes from a terminal are.
pub(super) fn keys(bytes: &[u8]) -> Vec<Key> {
    const SEQUENCES: [(&[u8], Key); 17] = [
        (b"\x1b[A", Key::Up),
        (b"\x1b[B", Key::Down),
        (b"\x1b[C", Key::Right),
        (b"\x1b[D", Key::Left),
        (b"\x1bOA", Key::Up),
        (b"\x1bOB", Key::Down),
        (b"\x1bOC", Key::Right),
        (b"\x1bOD", Key::Left),
        (b"\x1b[5~", Key::PageUp),
        (b"\x1b[6~", Key::PageDown),
        (b"\x1b[H", Key::Home),
        (b"\x1b[1~", Key::Home),
        (b"\x1b[F", Key::End),
        (b"\x1b[4~", Key::End),
        (b"\x1b[Z", Key::BackTab),
        (b"\x1bOH", Key::Home),
        (b"\x1bOF", Key::End),
    ];
    let (mut found, mut rest) = (Vec::new(), bytes);
    while let Some(first) = rest.first() {
        if let Some((sequence, key)) = SEQUENCES.iter().find(|(sequence, _)| rest.starts_with(sequence)) {
            found.push(*key);
            rest = &rest[sequence.len()..];
            continue;
        }
        let length = match first {
            // Another sequence: up to its last byte.
            0x1b if rest.get(1) == Some(&b'[') => {
                rest[2..].iter().position(|byte| (0x40..0x7f).contains(byte)).map_or(rest.len(), |at| at + 3)
            }
            0x1b => rest.len().min(2),
            _ => 1,
        };
        match first {
            b'\t' => found.push(Key::Tab),
            3 | 4 => found.push(Key::Interrupt),
            b' '..=b'~' => found.push(Key::Char(char::from(*first))),
            _ => {}
        }
        rest = &rest[length..];
    }
    found
}

/// What has happened.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    Keys(Vec<Key>),
    /// Nothing until the time, or the size of the terminal has changed.
    Time,
    /// The program is to end: a signal, or the terminal is gone.
    End,
}

/// A terminal in the modes of this program.
pub(super) struct Screen {
    out: Vec<u8>,
    has_colors: bool,
    is_ended: Arc<AtomicBool>,
    is_resized: Arc<AtomicBool>,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// It cannot be set.
    pub(super) fn enter() -> io::Result<Self> {
        let is_ended = Arc::new(AtomicBool::new(false));
        let is_resized = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&is_ended))?;
        }
        signal_hook::flag::register(SIGWINCH, Arc::clone(&is_resized))?;
        let before = tcgetattr(io::stdin())?;
        let mut modes = before.clone();
        modes.make_raw();
        *lock() = Some(before);
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            usual(panic);
        }));
        let screen = Self {
            out: Vec::new(),
            has_colors: std::env::var_os("NO_COLOR").is_none(),
            is_ended,
            is_resized,
        };
        tcsetattr(io::stdin(), OptionalActions::Now, &modes)?;
        let mut stdout = io::stdout().lock();
        stdout.write_all(ENTER).and_then(|()| stdout.flush())?;
        Ok(screen)
    }

    /// Waits for keys until this time.
    pub(super) fn wait(&self, until: Instant) -> Event {
        if self.is_ended.load(Ordering::Relaxed) {
            return Event::End;
        }
        // A signal that came just before is seen after this time.
        let wait = until.saturating_duration_since(Instant::now()).min(Duration::from_millis(250));
        let wait = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
        let stdin = io::stdin();
        let mut events = [PollFd::new(&stdin, PollFlags::IN)];
        let polled = poll(&mut events, Some(&wait));
        if self.is_ended.load(Ordering::Relaxed) {
            return Event::End;
        }
        match polled {
            Ok(0) | Err(rustix::io::Errno::INTR) => Event::Time,
            Ok(_) => {
                let mut bytes = [0; 256];
                match rustix::io::read(&stdin, &mut bytes) {
                    Ok(0) => Event::End,
                    Ok(count) => Event::Keys(keys(&bytes[..count])),
                    Err(rustix::io::Errno::INTR) => Event::Time,
                    Err(_) => Event::End,
                }
            }
            Err(_) => Event::End,
        }
    }

    /// Whether the size has changed since this was asked last.
    pub(super) fn is_resized(&self) -> bool {
        self.is_resized.swap(false, Ordering::Relaxed)
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        let _ = self.out.write_fmt(text);
    }

    fn style(&mut self, (color, modifier): (Color, Modifier)) {
        self.put(format_args!("\x1b[0"));
        for (wanted, number) in [(Modifier::BOLD, 1), (Modifier::DIM, 2), (Modifier::REVERSED, 7)] {
            if modifier.contains(wanted) {
                self.put(format_args!(";{number}"));
            }
        }
        let number = match color {
            Color::Red => 31,
            Color::Green => 32,
            Color::Yellow => 33,
            Color::Cyan => 36,
            _ => 39,
        };
        if self.has_colors && number != 39 {
            self.put(format_args!(";{number}"));
        }
        self.put(format_args!("m"));
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn lock() -> std::sync::MutexGuard<'static, Option<Termios>> {
    BEFORE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Gives the terminal back as it was.
fn restore() {
    if let Some(before) = lock().take() {
        // Without the lock of standard output, which a panic may have left taken. There may be no terminal any more.
        let _ = rustix::io::write(io::stdout(), LEAVE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &before);
    }
}

impl Backend for Screen {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let mut next = None;
        let mut style = None;
        for (x, y, cell) in content {
            if next != Some((x, y)) {
                self.put(format_args!("\x1b[{};{}H", y + 1, x + 1));
            }
            let wanted = (cell.fg, cell.modifier);
            if style != Some(wanted) {
                self.style(wanted);
                style = Some(wanted);
            }
            self.out.extend_from_slice(cell.symbol().as_bytes());
            // A wide character takes two places, and is followed by one that is left out.
            next = cell.symbol().is_ascii().then_some((x + 1, y));
        }
        self.put(format_args!("\x1b[0m"));
        Ok(())
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        self.put(format_args!("\x1b[{};{}H", y + 1, x + 1));
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.put(format_args!("\x1b[0m\x1b[2J"));
        Ok(())
    }

    fn clear_region(&mut self, _: ClearType) -> io::Result<()> {
        self.clear()
    }

    fn size(&self) -> io::Result<Size> {
        let size = tcgetwinsize(io::stdout())?;
        // A terminal that does not know its size says 0.
        let known = |cells: u16, usual| if cells == 0 { usual } else { cells };
        Ok(Size::new(known(size.ws_col, 80), known(size.ws_row, 24)))
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::ZERO })
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        let sent = stdout.write_all(&self.out).and_then(|()| stdout.flush());
        self.out.clear();
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_terminal_are_keys() {
        assert_eq!(
            keys(b"q\x1b[A\x1bOB\t\x1b[Z"),
            [Key::Char('q'), Key::Up, Key::Down, Key::Tab, Key::BackTab]
        );
        assert_eq!(keys(b"\x1b[5~\x1b[6~\x03"), [Key::PageUp, Key::PageDown, Key::Interrupt]);
        // Unknown sequences, a mouse, an escape alone, and text of other languages do nothing.
        assert_eq!(keys(b"\x1b[15~\x1b[<0;1;2Mr"), [Key::Char('r')]);
        assert_eq!(keys("\u{1b}".as_bytes()), []);
        assert_eq!(keys("é1".as_bytes()), [Key::Char('1')]);
        assert_eq!(keys(b"\x1b["), []);
    }
}
