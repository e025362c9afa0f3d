//! The commands that a client of the memcached protocol sends.

use std::rc::Rc;

use super::MemcachedClient;
use super::answer::Expected;
use crate::coverage::Point;
use crate::key_names::Collision;
use crate::pair_model::{Action, Mode, Origin, PairModel, value};
use crate::pair_settings::PairSettings;
use crate::shared::Shared;

/// Up to this number a time of the memcached protocol counts from now on, s; others are Unix time.
const RELATIVE_S_MAX: i64 = 30 * 24 * 60 * 60;

impl MemcachedClient {
    /// Begins a command of this connection.
    pub(super) fn begin(
        &mut self,
        shared: &mut Shared,
        model: &mut PairModel,
        key: usize,
        action: Action,
        is_answered: bool,
    ) -> u64 {
        match model.collision(key) {
            Some(Collision::Hash) => {
                shared.coverage.reach(Point::Form("memcached command on a key with the hash of another"));
            }
            Some(Collision::Bucket) => {
                shared
                    .coverage
                    .reach(Point::Form("memcached command on a key with the bucket and tag of others"));
            }
            None => {}
        }
        let origin = Origin::Connection { after: self.last[key], is_answered };
        let id = model.begin(key, action, origin, shared.now_ns);
        self.last[key] = Some(id);
        if !is_answered {
            self.unanswered.push((key, id));
        }
        id
    }

    fn push(&mut self, shared: &mut Shared, text: &str) {
        shared.say(|| format!("memcached client {}: {text:?}", self.actor));
        self.to_send.extend_from_slice(text.as_bytes());
        self.to_send.extend_from_slice(b"\r\n");
        self.sent_count += 1;
    }

    /// A key that one more command can be judged on.
    pub(super) fn key(&mut self, model: &PairModel, settings: &PairSettings) -> Option<usize> {
        let key = self.choice.below(settings.key_count as u64) as usize;
        model.has_room(key).then_some(key)
    }

    pub(super) fn exptime(&mut self) -> i64 {
        match self.choice.below(12) {
            0..7 => 0,
            7 => -1,
            8 => self.choice.between(100, 2_592_000).cast_signed(),
            _ => self.choice.between(1, 4).cast_signed(),
        }
    }

    /// A time to live as a client may give it: every third one as Unix time, unless that would be taken for seconds.
    fn time_word(&self, shared: &Shared, model: &PairModel, exptime: i64) -> i64 {
        let unix_s = shared.clocks.moment(shared.now_ns).unix_s + exptime;
        let is_absolute = exptime > 0 && unix_s > RELATIVE_S_MAX && model.next_id.is_multiple_of(3);
        if is_absolute { unix_s } else { exptime }
    }

    /// A value for the next command: text, or now and then a number.
    pub(super) fn value(&mut self, model: &PairModel, settings: &PairSettings) -> Rc<[u8]> {
        if self.choice.one_in(4) {
            let number = self.choice.next() >> self.choice.below(64);
            return number.to_string().into_bytes().into();
        }
        let (low, high) = (settings.value_bytes_min as u64, settings.value_bytes_max as u64);
        let low = low.min(high);
        let length = if self.choice.one_in(2) {
            self.choice.scaled(low, high)
        } else {
            self.choice.between(low - 1, high)
        };
        value(model.next_id, length as usize)
    }

    /// Sends one command.
    pub(super) fn choose(&mut self, shared: &mut Shared, model: &mut PairModel, settings: &PairSettings) {
        let Some(key) = self.key(model, settings) else {
            self.sent_count += 1;
            return;
        };
        match self.choice.below(20) {
            0..5 => self.get(shared, model, settings, key),
            5..10 => self.store(shared, model, settings, key),
            10..12 => self.delete(shared, model, key),
            12..14 => self.count(shared, model, key),
            14 => self.touch(shared, model, key),
            15..19 => self.meta(shared, model, settings, key),
            _ => self.rare(shared, model, settings),
        }
    }

    fn get(&mut self, shared: &mut Shared, model: &mut PairModel, settings: &PairSettings, key: usize) {
        let mut keys = vec![key];
        while self.choice.one_in(3)
            && let Some(key) = self.key(model, settings)
        {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let with_cas = self.choice.one_in(3);
        let touch = if self.choice.one_in(6) { Some(self.exptime()) } else { None };
        let verb = match (with_cas, touch) {
            (false, None) => "get".into(),
            (true, None) => "gets".into(),
            (false, Some(exptime)) => format!("gat {exptime}"),
            (true, Some(exptime)) => format!("gats {exptime}"),
        };
        shared.coverage.reach(Point::Form(if keys.len() > 1 {
            "memcached get of keys"
        } else {
            "memcached get"
        }));
        let text = keys.iter().fold(verb, |text, key| text + " " + &model.name(*key));
        let action = touch.map_or(Action::Get, |exptime| Action::GetAndTouch { exptime });
        let commands = keys.iter().map(|&key| (key, self.begin(shared, model, key, action.clone(), true)));
        let commands = commands.collect();
        self.push(shared, &text);
        self.expected.push_back(Expected::Values { commands, done: 0, is_last_look: false });
    }

    /// Reads a key when nothing changes any more.
    pub(super) fn get_in_the_end(&mut self, shared: &mut Shared, model: &mut PairModel, key: usize) {
        let commands = vec![(key, self.begin(shared, model, key, Action::Get, true))];
        self.push(shared, &format!("get {}", model.name(key)));
        self.expected.push_back(Expected::Values { commands, done: 0, is_last_look: true });
    }

    /// The mode of a store, and its name in the classic and in the meta protocol.
    pub(super) fn mode(&mut self, key: usize) -> (Mode, &'static str, char) {
        match (self.choice.below(10), self.cas[key]) {
            (0, _) => (Mode::Add, "add", 'E'),
            (1, _) => (Mode::Replace, "replace", 'R'),
            (2, _) => (Mode::Append, "append", 'A'),
            (3, _) => (Mode::Prepend, "prepend", 'P'),
            (4 | 5, Some(cas)) => (Mode::Cas(cas), "cas", 'S'),
            _ => (Mode::Set, "set", 'S'),
        }
    }

    fn store(&mut self, shared: &mut Shared, model: &mut PairModel, settings: &PairSettings, key: usize) {
        let (mode, verb, _) = self.mode(key);
        let (value, exptime) = (self.value(model, settings), self.exptime());
        let flags = if self.choice.one_in(3) { self.choice.next() as u32 } else { 0 };
        let is_answered = !self.choice.one_in(6);
        shared.coverage.reach(Point::Form(if is_answered {
            "memcached store"
        } else {
            "memcached store without answer"
        }));
        let cas = if let Mode::Cas(cas) = mode { format!(" {cas}") } else { String::new() };
        let quiet = if is_answered { "" } else { " noreply" };
        let time = self.time_word(shared, model, exptime);
        let text = format!("{verb} {} {flags} {time} {}{cas}{quiet}\r\n", model.name(key), value.len());
        let text = text + std::str::from_utf8(&value).expect("text");
        let action = Action::Store { mode, value, flags, exptime };
        let command = self.begin(shared, model, key, action, is_answered);
        self.push(shared, &text);
        if is_answered {
            self.expected.push_back(Expected::Line { key, command });
        }
    }

    /// A command of one line that may ask for no answer.
    fn short(
        &mut self,
        shared: &mut Shared,
        model: &mut PairModel,
        key: usize,
        text: String,
        action: Action,
    ) {
        let is_answered = !self.choice.one_in(6);
        let command = self.begin(shared, model, key, action, is_answered);
        self.push(shared, &(text + if is_answered { "" } else { " noreply" }));
        if is_answered {
            self.expected.push_back(Expected::Line { key, command });
        }
    }

    fn delete(&mut self, shared: &mut Shared, model: &mut PairModel, key: usize) {
        shared.coverage.reach(Point::Form("memcached delete"));
        let text = format!("delete {}", model.name(key));
        self.short(shared, model, key, text, Action::Delete { is_told: true });
    }

    fn count(&mut self, shared: &mut Shared, model: &mut PairModel, key: usize) {
        shared.coverage.reach(Point::Form("memcached counter"));
        let is_decrement = self.choice.one_in(3);
        let delta = self.choice.next() >> self.choice.below(64);
        let verb = if is_decrement { "decr" } else { "incr" };
        let text = format!("{verb} {} {delta}", model.name(key));
        self.short(shared, model, key, text, Action::Count { delta, is_decrement, create: None });
    }

    fn touch(&mut self, shared: &mut Shared, model: &mut PairModel, key: usize) {
        shared.coverage.reach(Point::Form("memcached touch"));
        let exptime = self.exptime();
        let text = format!("touch {} {}", model.name(key), self.time_word(shared, model, exptime));
        self.short(shared, model, key, text, Action::Touch { exptime });
    }

    /// A command of the meta protocol. Its opaque is the number of its command.
    fn meta(&mut self, shared: &mut Shared, model: &mut PairModel, settings: &PairSettings, key: usize) {
        let (opaque, name) = (model.next_id, model.name(key));
        let (text, action) = match self.choice.below(6) {
            0..3 => {
                shared.coverage.reach(Point::Form("memcached mg"));
                let touch = if self.choice.one_in(6) { Some(self.exptime()) } else { None };
                let flags = if self.choice.one_in(3) { " c" } else { "" };
                let time = touch.filter(|exptime| *exptime >= 0);
                let action = time.map_or(Action::Get, |exptime| Action::GetAndTouch { exptime });
                let time = time.map_or(String::new(), |exptime| format!(" T{exptime}"));
                (format!("mg {name} v f O{opaque}{flags}{time}"), action)
            }
            3 | 4 => {
                shared.coverage.reach(Point::Form("memcached ms"));
                let (mode, _, letter) = self.mode(key);
                let (value, exptime) = (self.value(model, settings), self.exptime());
                let flags = if self.choice.one_in(3) { self.choice.next() as u32 } else { 0 };
                let cas = if let Mode::Cas(cas) = mode { format!(" C{cas}") } else { String::new() };
                let wants_cas = if self.choice.one_in(2) { " c" } else { "" };
                let time = self.time_word(shared, model, exptime);
                let head = format!(
                    "ms {name} {} O{opaque} T{time} F{flags} M{letter}{cas}{wants_cas}\r\n",
                    value.len()
                );
                let text = head + std::str::from_utf8(&value).expect("text");
                (text, Action::Store { mode, value, flags, exptime })
            }
            _ => {
                shared.coverage.reach(Point::Form("memcached md"));
                (format!("md {name} O{opaque}"), Action::Delete { is_told: true })
            }
        };
        let command = self.begin(shared, model, key, action, true);
        self.push(shared, &text);
        self.expected.push_back(Expected::Meta { key, command, opaque });
    }

    /// A command on no key, or on all.
    fn rare(&mut self, shared: &mut Shared, model: &mut PairModel, settings: &PairSettings) {
        let (text, expected) = match self.choice.below(4) {
            0 => ("mn", Expected::Text("MN")),
            1 => ("version", Expected::Text("VERSION *")),
            2 => ("bogus", Expected::Text("ERROR*")),
            _ if settings.allows_flush && (0..settings.key_count).all(|key| model.has_room(key)) => {
                shared.coverage.reach(Point::Form("memcached flush_all"));
                let keys = 0..settings.key_count;
                let commands = keys.map(|key| (key, self.begin(shared, model, key, Action::Clear, true)));
                ("flush_all", Expected::Cleared { commands: commands.collect() })
            }
            _ => ("mn", Expected::Text("MN")),
        };
        self.push(shared, text);
        self.expected.push_back(expected);
    }
}
