//! A model of Envoy 1.40 as a client of the quota service, for one bucket.
//!
//! It reports every five seconds, and at once when the bucket is new. A token bucket starts
//! full; one that comes again keeps its level, and one that differs only in its interval is
//! ignored. An assignment expires after whole seconds. A lost stream is opened again with
//! the next report; what was counted meanwhile is dropped if there is no server.

use super::super::{Assignment, LIFETIME_S, Tokens, whole};

/// One Envoy.
pub(super) struct Envoy {
    /// Requests per second that arrive.
    pub(super) offered: f64,
    arriving: f64,
    has_bucket: bool,
    assignment: Option<Assignment>,
    /// What is in its token bucket.
    level: f64,
    expires_s: f64,
    allowed: u64,
    denied: u64,
    next_report_s: f64,
    last_report_s: f64,
    /// The stream it believes it has.
    pub(super) stream: Option<u64>,
    /// Requests admitted by an assignment, and without one.
    pub(super) admitted: u64,
    pub(super) unassigned: u64,
    pub(super) refused: u64,
}

/// What it tells the server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Report {
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) elapsed_s: u64,
}

impl Envoy {
    pub(super) fn new(offered: f64) -> Self {
        Self {
            offered,
            arriving: 0.0,
            has_bucket: false,
            assignment: None,
            level: 0.0,
            expires_s: 0.0,
            allowed: 0,
            denied: 0,
            next_report_s: f64::INFINITY,
            last_report_s: 0.0,
            stream: None,
            admitted: 0,
            unassigned: 0,
            refused: 0,
        }
    }

    /// A new process in its place.
    pub(super) fn restart(&mut self) {
        let (admitted, unassigned, refused) = (self.admitted, self.unassigned, self.refused);
        *self = Self {
            admitted,
            unassigned,
            refused,
            ..Self::new(self.offered)
        };
    }

    /// The rate it may admit at, if it has an assignment.
    pub(super) fn rate(&self) -> f64 {
        self.assignment.as_ref().map_or(0.0, Assignment::rate)
    }

    /// Time passes: requests arrive, and perhaps a report is due. Says how many requests an
    /// assignment has admitted, and the report.
    pub(super) fn pass(&mut self, now_s: f64, passed_s: f64) -> (u64, Option<Report>) {
        if let Some(Assignment::Tokens(tokens)) = self.assignment {
            let more = f64::from(tokens.fill) / f64::from(tokens.interval_s) * passed_s;
            self.level = (self.level + more).min(f64::from(tokens.size));
        }
        if self.expires_s <= now_s {
            self.assignment = None;
        }
        self.arriving += self.offered * passed_s;
        let arrived = self.arriving.floor();
        self.arriving -= arrived;
        let before = self.admitted;
        let mut report = None;
        for _ in 0..whole(arrived) {
            if !self.has_bucket {
                self.has_bucket = true;
                (self.last_report_s, self.next_report_s) =
                    (now_s, self.next_report_s.min(now_s + 5.0));
                (self.allowed, self.denied) = (1, 0);
                self.unassigned += 1;
                report = Some(self.report(now_s));
                continue;
            }
            match self.assignment {
                None | Some(Assignment::Allow) => {
                    self.unassigned += 1;
                    self.allowed += 1;
                }
                Some(Assignment::Tokens(_)) if self.level >= 1.0 => {
                    self.level -= 1.0;
                    self.admitted += 1;
                    self.allowed += 1;
                }
                Some(Assignment::Tokens(_) | Assignment::Deny) => {
                    self.refused += 1;
                    self.denied += 1;
                }
            }
        }
        if now_s >= self.next_report_s {
            self.next_report_s = now_s + 5.0;
            report = self.has_bucket.then(|| self.report(now_s));
        }
        (self.admitted - before, report)
    }

    fn report(&mut self, now_s: f64) -> Report {
        let report = Report {
            allowed: self.allowed,
            denied: self.denied,
            elapsed_s: whole(now_s - self.last_report_s),
        };
        (self.allowed, self.denied, self.last_report_s) = (0, 0, now_s);
        report
    }

    /// An assignment arrives, or none: the bucket is abandoned.
    pub(super) fn receive(&mut self, now_s: f64, assignment: Option<Assignment>) {
        let Some(assignment) = assignment else {
            (self.has_bucket, self.assignment) = (false, None);
            return;
        };
        if !self.has_bucket {
            return;
        }
        let kept = match (self.assignment, assignment) {
            (Some(Assignment::Tokens(old)), Assignment::Tokens(new)) => {
                let is_same =
                    |one: Tokens, other: Tokens| (one.size, one.fill) == (other.size, other.fill);
                is_same(old, new).then_some(Assignment::Tokens(old))
            }
            _ => None,
        };
        if kept.is_none() {
            self.level = assignment.size();
        }
        self.assignment = Some(kept.unwrap_or(assignment));
        self.expires_s = now_s + f64::from(LIFETIME_S);
    }
}
