//! What happens to a request before the access phase: its keys, the zones in memory, the
//! zones in Redis, and the answer.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ngx::ffi::{ngx_http_request_t, ngx_int_t};
use smallvec::SmallVec;
use tidegate::{Charge, Cost, Decision};

use crate::answer::{self, Decided, Outcome, Verdict};
use crate::code;
use crate::conf::{Main, Rule};
use crate::log::Severity;
use crate::remote::Question;
use crate::request::{Request, State};
use crate::worker::{self, Asked};

/// What nginx does next with a request.
pub(crate) enum Next {
    /// It goes on.
    Pass,
    /// It waits.
    Wait,
    /// It was answered.
    Done,
    /// nginx answers with this status.
    Status(u16),
}

impl Next {
    fn code(self) -> ngx_int_t {
        match self {
            Self::Pass => code::DECLINED,
            Self::Wait => code::AGAIN,
            Self::Done => code::DONE,
            Self::Status(status) => code::status(status),
        }
    }
}

const BAD_REQUEST: u16 = 400;
const INTERNAL_ERROR: u16 = 500;

/// A zone to ask about a request.
pub(crate) struct Check<'r> {
    pub(crate) zone: usize,
    pub(crate) key: &'r [u8],
    pub(crate) cost: Cost,
}

type Checks<'r> = SmallVec<[Check<'r>; 4]>;

/// Called by nginx.
pub(crate) unsafe extern "C" fn handle(raw: *mut ngx_http_request_t) -> ngx_int_t {
    // SAFETY: nginx hands over a request that lives during the call.
    let request = unsafe { Request::from_raw(raw) };
    let next = catch_unwind(AssertUnwindSafe(|| decide(&request)));
    let next = next.unwrap_or_else(|_| {
        request.log(Severity::ALERT, "tidegate: a bug: answering 500");
        Next::Status(INTERNAL_ERROR)
    });
    next.code()
}

fn decide(request: &Request<'_>) -> Next {
    let rules = request.location().rules();
    if rules.is_empty() {
        return Next::Pass;
    }
    let Some(state) = request.remember() else {
        return Next::Status(INTERNAL_ERROR);
    };
    // The page that says so is not limited, nor are its parts.
    if state.is_refused(request) {
        return Next::Pass;
    }
    if state.suspended.get() > 0 {
        match worker::asked(request) {
            Asked::Waits => return Next::Wait,
            Asked::Answered(charged, answers) => {
                state.suspended.update(|waiting| waiting - 1);
                return finish(request, state, charged, answers);
            }
            // It is another part of the request that waits.
            Asked::No => {}
        }
    }
    let main = request.config();
    let checks = match checks(request, main, rules, state) {
        Ok(checks) => checks,
        Err(next) => return next,
    };
    if checks.is_empty() {
        let earlier = state.outcome.get();
        state.outcome.set(earlier.or(Some(Outcome::BYPASSED)));
        return Next::Pass;
    }
    let charged = match ask_memory(main, &checks) {
        Ok(charged) => charged,
        Err(refused) => return tell(request, state, refused),
    };
    let mut shared = checks.iter().filter(|check| is_shared(main, check));
    match (shared.next(), shared.next()) {
        (None, _) => return tell(request, state, charged),
        // Most often one zone asks a store, and mostly it need not.
        (Some(check), None) => {
            if let Some(decision) = worker::decide(check) {
                let decided = with(main, &checks, charged, (check.zone, decision));
                return tell(request, state, decided);
            }
        }
        _ => {}
    }
    let shared = checks.iter().filter(|check| is_shared(main, check));
    let questions: Vec<Question> = shared.map(Question::of).collect();
    match worker::ask(request, questions) {
        worker::Answer::Now(answers) => {
            finish(request, state, with_keys(charged, &checks), answers)
        }
        worker::Answer::Later(id) => {
            let charged = with_keys(charged, &checks);
            if !worker::suspend(request, id, charged) {
                return Next::Status(INTERNAL_ERROR);
            }
            state.suspended.update(|waiting| waiting + 1);
            Next::Wait
        }
    }
}

/// The zones that count this request: not those whose key is empty, nor those that have
/// counted it before an internal redirect.
fn checks<'r>(
    request: &Request<'r>,
    main: &'r Main,
    rules: &'r [Rule],
    state: &State,
) -> Result<Checks<'r>, Next> {
    let mut checks = Checks::new();
    for rule in rules {
        let Some(zone) = main.zone(rule.zone) else {
            continue;
        };
        if state.counted.borrow().contains(&rule.zone) {
            continue;
        }
        let out_of_memory = Next::Status(INTERNAL_ERROR);
        let Some(key) = zone.key.value(request) else {
            return Err(out_of_memory);
        };
        if key.is_empty() {
            continue;
        }
        let cost = match &rule.cost {
            None => Cost::ONE,
            Some(expression) => {
                let Some(text) = expression.value(request) else {
                    return Err(out_of_memory);
                };
                let Some(cost) = cost(text) else {
                    let shown = tidegate::text::shown(&String::from_utf8_lossy(text));
                    let name = &zone.spec.name;
                    let line = format!(
                        "the cost for zone \"{name}\" is {shown}: expected a number from 1 to 4294967295"
                    );
                    request.log(Severity::ERROR, &line);
                    return Err(Next::Status(BAD_REQUEST));
                };
                cost
            }
        };
        checks.push(Check {
            zone: rule.zone,
            key,
            cost,
        });
    }
    let zones = checks.iter().map(|check| check.zone);
    state.counted.borrow_mut().extend(zones);
    Ok(checks)
}

/// A cost, as text; that of one request when it is empty.
pub(crate) fn cost(text: &[u8]) -> Option<Cost> {
    if text.is_empty() {
        return Some(Cost::ONE);
    }
    if text.len() > 10 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = text.iter().map(|digit| u64::from(digit - b'0'));
    Cost::new(digits.fold(0, |number, digit| number * 10 + digit)).ok()
}

/// Asks the zones in memory, in order. One that refuses has the others take their charges
/// back, and is all there is to tell.
fn ask_memory(main: &Main, checks: &[Check<'_>]) -> Result<Decided, Decided> {
    let mut charged = Decided::new();
    for check in checks {
        let Some(counts) = main.zone(check.zone).and_then(|zone| zone.counts.get()) else {
            continue;
        };
        let decision = counts.zone.decide(check.key, check.cost, Charge::Admitted);
        let is_allowed = decision.allowed();
        charged = with(main, checks, charged, (check.zone, decision));
        if !is_allowed {
            return Err(charged);
        }
    }
    Ok(charged)
}

/// What zones in memory have charged, and one more decision. If that is a refusal, they take
/// their charges back, and it is all there is to tell.
#[inline]
fn with(
    main: &Main,
    checks: &[Check<'_>],
    mut charged: Decided,
    last: (usize, Decision),
) -> Decided {
    if !last.1.allowed() {
        for (zone, decision) in charged.drain(..) {
            let key = checks.iter().find(|check| check.zone == zone);
            let counts = main.zone(zone).and_then(|zone| zone.counts.get());
            if let (Some(counts), Some(check)) = (counts, key) {
                counts.zone.take_back(check.key, decision);
            }
        }
    }
    charged.push(last);
    charged
}

/// Whether a check is one of a zone in Redis.
fn is_shared(main: &Main, check: &Check<'_>) -> bool {
    main.zone(check.zone)
        .is_some_and(|zone| zone.counts.get().is_none())
}

/// Charges with the keys they belong to, for when the request goes on.
fn with_keys(charged: Decided, checks: &[Check<'_>]) -> Vec<Kept> {
    let key = |zone: usize| checks.iter().find(|check| check.zone == zone);
    let kept = charged.into_iter().filter_map(|(zone, decision)| {
        let key = key(zone)?.key.into();
        Some(Kept {
            zone,
            key,
            decision,
        })
    });
    kept.collect()
}

/// What a zone in memory has charged to a request that waits.
pub(crate) struct Kept {
    zone: usize,
    key: Box<[u8]>,
    decision: Decision,
}

/// The stores have answered: puts it together with what the zones in memory said.
fn finish(request: &Request<'_>, state: &State, kept: Vec<Kept>, answers: Decided) -> Next {
    let refused = answers.last().is_some_and(|(_, it)| !it.allowed());
    let main = request.config();
    let mut decided = Decided::new();
    for Kept {
        zone,
        key,
        decision,
    } in kept
    {
        match main.zone(zone).and_then(|zone| zone.counts.get()) {
            Some(counts) if refused => counts.zone.take_back(&key, decision),
            _ => decided.push((zone, decision)),
        }
    }
    decided.extend(answers);
    tell(request, state, decided)
}

fn tell(request: &Request<'_>, state: &State, decided: Decided) -> Next {
    let (outcome, verdict) = answer::tell(request, request.config(), request.location(), decided);
    state.outcome.set(Some(outcome));
    let Verdict::Refused(status, body) = verdict else {
        return Next::Pass;
    };
    state.refuse(request);
    // The config may have a page of its own, and a part of a page has no body of its own.
    if request.has_error_page(status) || !request.is_main() {
        return Next::Status(status);
    }
    match request.answer(status, "application/problem+json", &body) {
        Some(()) => Next::Done,
        None => Next::Status(INTERNAL_ERROR),
    }
}
