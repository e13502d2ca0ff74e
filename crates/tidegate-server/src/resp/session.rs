//! The state of a client: its authentication and permissions.

use super::command::CommandError;
use super::reply::{Replies, Version};
use crate::engine::{Access, Current};

/// A client's session.
#[derive(Debug, Default)]
pub struct Session {
    /// The number of the connection.
    pub(super) id: u64,
    /// What the client calls itself.
    pub(super) name: Vec<u8>,
    /// The token for asking that it has shown. Whether that is still the right one is asked
    /// each time: the config may change.
    token: Vec<u8>,
    /// The admin token it has shown, likewise.
    admin_token: Vec<u8>,
    /// Nothing more is to be read.
    pub(super) is_over: bool,
}

/// The user whose token is that of `admin_token`.
const ADMIN: &[u8] = b"admin";

/// The user of a client that names none.
const DEFAULT: &[u8] = b"default";

impl Session {
    /// Of the connection with this number.
    #[must_use]
    pub fn new(id: u64) -> Self {
        Self {
            id,
            ..Self::default()
        }
    }

    /// Whether it may ask.
    #[inline]
    pub(super) fn may_ask(&self, current: &Current) -> bool {
        !current.needs_resp_token() || current.is_resp_token(&self.token) || self.is_admin(current)
    }

    fn is_admin(&self, current: &Current) -> bool {
        let token = &self.admin_token;
        !token.is_empty() && current.access(Some(token)) == Access::Granted
    }

    /// Whether it may change anything.
    pub(super) fn may_change(&self, current: &Current, name: &str) -> Result<(), CommandError> {
        match current.access(Some(&self.admin_token)) {
            Access::Granted => Ok(()),
            Access::Refused => Err(CommandError::new(
                "NOAUTH",
                format!("{name} changes state: authenticate with AUTH admin <admin token>"),
            )),
            Access::Nobody => Err(CommandError::new(
                "NOPERM",
                format!("{name} changes state: set admin_token in [server] to allow it"),
            )),
        }
    }

    /// Takes a user and its token.
    pub(super) fn authenticate(
        &mut self,
        current: &Current,
        user: Option<&[u8]>,
        token: &[u8],
    ) -> Result<(), CommandError> {
        if user == Some(ADMIN) {
            if current.access(Some(token)) == Access::Granted {
                self.admin_token = token.to_vec();
                return Ok(());
            }
        } else if !current.needs_resp_token() {
            let message = "AUTH called although no resp_token is set in [server]: no token is needed (AUTH admin <token> takes the admin token)";
            return Err(CommandError::new("ERR", message));
        } else if user.is_none_or(|user| user == DEFAULT) && current.is_resp_token(token) {
            self.token = token.to_vec();
            return Ok(());
        }
        let message = "invalid username-password pair or user is disabled: expected the resp_token of [server], or user admin and the admin_token";
        Err(CommandError::new("WRONGPASS", message))
    }

    /// As it was when the connection was opened.
    pub(super) fn reset(&mut self, replies: &mut Replies) {
        *self = Self::new(self.id);
        replies.version = Version::Two;
    }
}
