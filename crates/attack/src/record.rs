//! What an attack found, as a table and as JSON.

use serde::Serialize;

/// The result of one attack.
#[derive(Debug, Serialize)]
pub struct Record {
    /// The attack.
    pub attack: String,
    /// How many datagrams, frames, kills and so on there were.
    pub count: u64,
    /// Messages that members checked meanwhile.
    pub checked: u64,
    /// What held, in numbers.
    pub notes: Vec<String>,
    /// Promises that did not hold.
    pub broken: Vec<String>,
    /// Why the attack could not be made.
    pub skipped: Option<String>,
    pub seconds: f64,
    #[serde(skip)]
    told: Option<std::time::Instant>,
}

/// How often a long attack says how far it is.
const TELL_EVERY: std::time::Duration = std::time::Duration::from_secs(20);

impl Record {
    /// Makes an attack and notes how long it took.
    pub fn of(attack: String, run: impl FnOnce(&mut Record)) -> Record {
        let begin = std::time::Instant::now();
        let (notes, broken) = (Vec::new(), Vec::new());
        let (skipped, told) = (None, Some(begin));
        let mut record = Record { attack, count: 0, checked: 0, notes, broken, skipped, seconds: 0.0, told };
        run(&mut record);
        record.seconds = (begin.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        record
    }

    /// Says now and then how far the attack is.
    pub fn tell(&mut self, of: u64) {
        if self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            self.told = Some(std::time::Instant::now());
            eprintln!("{}: {} of {of}, {} broken", self.attack, self.count, self.broken.len());
        }
    }

    /// Whether all promises held, as far as they were tested.
    pub fn held(&self) -> bool {
        self.broken.is_empty()
    }

    /// Notes a promise that did not hold; only the first ones are kept.
    pub fn breaks(&mut self, what: String) {
        const KEPT: usize = 16;
        if self.broken.len() < KEPT {
            self.broken.push(what);
        }
    }

    fn verdict(&self) -> String {
        match (&self.skipped, self.held()) {
            (Some(why), _) => format!("SKIPPED: {why}"),
            (None, true) => "held".to_owned(),
            (None, false) => format!("BROKEN: {}", self.broken.join("; ")),
        }
    }

    /// The record in one line.
    pub fn line(&self) -> String {
        let Record { attack, count, checked, seconds, .. } = self;
        let notes = self.notes.join(", ");
        format!("{attack}: {count} in {seconds} s, {checked} messages checked, {notes}: {}", self.verdict())
    }
}

/// Prints all records.
pub fn print(records: &[Record], json: bool) {
    if json {
        println!("{}", serde_json::to_string_pretty(records).expect("records are plain data"));
        return;
    }
    println!("| attack | count | messages checked | seconds | found | verdict |");
    println!("|---|---|---|---|---|---|");
    for record in records {
        println!(
            "| {} | {} | {} | {} | {} | {} |",
            record.attack,
            record.count,
            record.checked,
            record.seconds,
            record.notes.join(", "),
            record.verdict()
        );
    }
}
