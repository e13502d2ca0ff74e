//! `tidegate top`: a live view of a running server in a terminal.
//!
//! `feed` hears what the server says, `screen` draws it, and this waits for either, for
//! keys, and for signals. The terminal is left as it was found, whatever ends it.

mod feed;
mod screen;

use std::io::IsTerminal;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use crossterm::event::{Event, EventStream, KeyCode, KeyModifiers};
use futures_util::StreamExt;
use http::Method;
use ratatui::DefaultTerminal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::client::Client;
use feed::{Feed, Message, Top};
use screen::Screen;

/// How soon a server that is gone is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// How often keys are asked for.
const KEYS: Duration = Duration::from_secs(2);

/// A question for keys, on its way.
type Asked<'c> = Pin<Box<dyn Future<Output = Result<Top, String>> + Send + 'c>>;

/// Shows what the server does until the user has seen enough.
pub async fn run(client: Client, token: Option<&str>) -> anyhow::Result<()> {
    // An error at the start is printed where it stays.
    ensure!(
        std::io::stdout().is_terminal() && std::io::stdin().is_terminal(),
        "standard input and output: expected a terminal"
    );
    let client = Arc::new(client);
    let mut feed = Feed::open(&client).await?;
    let mut screen = Screen::new(client.url());
    screen.take(feed.next().await?);
    let (sender, heard) = mpsc::channel(1);
    let listening = tokio::spawn(listen(Arc::clone(&client), feed, sender));
    let mut terminal = ratatui::try_init().context("cannot prepare the terminal")?;
    let shown = show(&mut terminal, &mut screen, &client, token, heard).await;
    listening.abort();
    drop(terminal);
    let restored = ratatui::try_restore().context("cannot restore the terminal");
    shown.and(restored)
}

async fn show(
    terminal: &mut DefaultTerminal,
    screen: &mut Screen,
    client: &Client,
    token: Option<&str>,
    mut heard: mpsc::Receiver<anyhow::Result<Message>>,
) -> anyhow::Result<()> {
    let mut keyboard = EventStream::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut keys = interval(KEYS);
    keys.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut asked: Option<Asked<'_>> = None;
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        let answered = async {
            match &mut asked {
                Some(asked) => asked.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(heard) = heard.recv() => match heard {
                Ok(message) => screen.take(message),
                Err(error) => screen.lost = Some(format!("{error:#}")),
            },
            top = answered => (screen.top, asked) = (top, None),
            _ = keys.tick() => {
                let (path, token) = (screen.question(), token.map(str::to_owned));
                asked = Some(Box::pin(top(client, token, path)));
            }
            event = keyboard.next() => match event {
                None => return Ok(()),
                Some(event) => match obey(screen, &event.context("cannot read the terminal")?) {
                    Told::Quit => return Ok(()),
                    Told::Ask => keys.reset_immediately(),
                    // After a change of the size, too, the screen is drawn anew.
                    Told::Nothing => {}
                },
            },
            _ = terminate.recv() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
        }
    }
}

/// What the user wants.
enum Told {
    Quit,
    /// Other keys than those shown.
    Ask,
    Nothing,
}

fn obey(screen: &mut Screen, event: &Event) -> Told {
    let Some(key) = event.as_key_press_event() else {
        return Told::Nothing;
    };
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return Told::Quit,
        KeyCode::Char('c') if is_control => return Told::Quit,
        KeyCode::Up | KeyCode::Char('k') => screen.select(-1),
        KeyCode::Down | KeyCode::Char('j') => screen.select(1),
        KeyCode::Char('b') => screen.by_requests = !screen.by_requests,
        KeyCode::Char('w') => screen.by_hour = !screen.by_hour,
        _ => return Told::Nothing,
    }
    Told::Ask
}

/// Hears messages for ever. After an error the stream is opened anew, a while later.
async fn listen(client: Arc<Client>, feed: Feed, told: mpsc::Sender<anyhow::Result<Message>>) {
    let mut feed = Some(feed);
    loop {
        let heard = match &mut feed {
            Some(feed) => feed.next().await,
            None => {
                sleep(RETRY).await;
                match Feed::open(&client).await {
                    Ok(mut opened) => {
                        let heard = opened.next().await;
                        feed = Some(opened);
                        heard
                    }
                    Err(error) => Err(error),
                }
            }
        };
        if heard.is_err() {
            feed = None;
        }
        if told.send(heard).await.is_err() {
            return;
        }
    }
}

/// The keys at a path of the server, or why they cannot be shown.
async fn top(client: &Client, token: Option<String>, path: String) -> Result<Top, String> {
    let token = token.ok_or("set TIDEGATE_ADMIN_TOKEN to the admin token to see keys")?;
    let answer = client.ask(Method::GET, &path, Some(&token), String::new());
    let answer = answer.await.map_err(|error| format!("{error:#}"))?;
    serde_json::from_value(answer).map_err(|error| error.to_string())
}
