//! Asks several servers the same question. Some may be down or have outdated information,
//! so the majority decides.

use std::future::Future;
use std::time::Duration;

use redis::RedisResult;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::connect::wrong;

/// How long the others have when one has answered.
const MOMENT: Duration = Duration::from_millis(100);

/// Asks so many at once, and another one in place of each that fails. What they say, that
/// which most of them say first; as soon as more than half of those asked agree, nobody
/// else is waited for. An error if nobody knows.
pub(crate) async fn ask_several<T, F>(
    addresses: Vec<String>,
    at_once: usize,
    ask: impl Fn(String) -> F,
) -> RedisResult<Vec<(T, usize)>>
where
    T: PartialEq + Send + 'static,
    F: Future<Output = RedisResult<T>> + Send + 'static,
{
    let mut waiting = addresses.into_iter();
    let mut asked: JoinSet<RedisResult<T>> = JoinSet::new();
    for address in waiting.by_ref().take(at_once) {
        asked.spawn(ask(address));
    }
    let enough = asked.len() / 2 + 1;
    let mut answers: Vec<(T, usize)> = Vec::new();
    let mut error = wrong("no server to ask");
    let mut until: Option<Instant> = None;
    loop {
        let next = match until {
            Some(until) => timeout_at(until, asked.join_next()).await.unwrap_or(None),
            None => asked.join_next().await,
        };
        match next {
            Some(Ok(Ok(answer))) => {
                until.get_or_insert_with(|| Instant::now() + MOMENT);
                let known = answers.iter().position(|(other, _)| *other == answer);
                let known = known.unwrap_or_else(|| {
                    answers.push((answer, 0));
                    answers.len() - 1
                });
                answers[known].1 += 1;
                if answers[known].1 >= enough {
                    break;
                }
            }
            Some(failed) => {
                if let Ok(Err(why)) = failed {
                    error = why;
                }
                if let Some(address) = waiting.next() {
                    asked.spawn(ask(address));
                }
            }
            None => break,
        }
    }
    answers.sort_by_key(|(_, votes)| std::cmp::Reverse(*votes));
    match answers.is_empty() {
        true => Err(error),
        false => Ok(answers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks these, who say the number in their name, after some milliseconds or never.
    async fn ask(names: &[&str], at_once: usize) -> Option<Vec<(u64, usize)>> {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let answers = ask_several(names, at_once, |name| async move {
            let mut words = name.split(' ');
            let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
            let (Some(after), answer) = (number(), number()) else {
                return std::future::pending().await;
            };
            tokio::time::sleep(Duration::from_millis(after)).await;
            answer.ok_or_else(|| wrong("down"))
        });
        answers.await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn majority_decides_and_failed_servers_are_replaced() {
        for (names, at_once, expected) in [
            (&["1 7"][..], 3, Some(vec![(7, 1)])),
            (&["1 6", "2 7", "3 7"], 3, Some(vec![(7, 2), (6, 1)])),
            (&["1 7", "2 7", "never"], 3, Some(vec![(7, 2)])),
            (&["1 7", "never", "never"], 3, Some(vec![(7, 1)])),
            (&["1 6", "99 7", "500 7"], 3, Some(vec![(6, 1), (7, 1)])),
            (&["1", "2", "3", "4 7"], 2, Some(vec![(7, 1)])),
            (&["1", "2 6", "3 7", "4 7"], 3, Some(vec![(7, 2), (6, 1)])),
            (&["1", "2"], 3, None),
            (&[], 3, None),
        ] {
            assert_eq!(ask(names, at_once).await, expected, "{names:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_answer_is_awaited_once_enough_agree() {
        let start = Instant::now();
        ask(&["10 7", "20 7", "never"], 3).await;
        assert_eq!(start.elapsed(), Duration::from_millis(20));
        let start = Instant::now();
        ask(&["10 7", "never", "never"], 3).await;
        assert_eq!(start.elapsed(), Duration::from_millis(10) + MOMENT);
    }
}
