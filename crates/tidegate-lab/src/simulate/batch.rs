//! Requests in the order of time, many at once: what is handed from the thread that reads
//! to the thread that decides, and what is kept on disk to be decided again.

/// Requests, each a time and the values of its attributes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Batch {
    requests: Vec<Request>,
    bytes: Vec<u8>,
}

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Request {
    at_us: u64,
    /// Where its packed values begin.
    start: u32,
}

/// Packs the values of a line: for each slot its length plus one, or zero for none, then
/// its bytes.
pub(super) fn pack<'v>(values: impl Iterator<Item = Option<&'v [u8]>>, bytes: &mut Vec<u8>) {
    for value in values {
        let length = value.map_or(0, |value| value.len() + 1);
        let length = u32::try_from(length).expect("lines are bounded");
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(value.unwrap_or_default());
    }
}

/// Unpacks the values of a request that begins here.
fn unpack<'b>(mut bytes: &'b [u8], values: &mut [Option<&'b [u8]>]) {
    for value in values {
        let (length, rest) = bytes.split_first_chunk().expect("every value has a length");
        let length = u32::from_le_bytes(*length) as usize;
        let (text, rest) = rest.split_at(length.saturating_sub(1));
        *value = (length > 0).then_some(text);
        bytes = rest;
    }
}

impl Batch {
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Adds a request with packed values.
    pub(super) fn push(&mut self, at_us: u64, packed: &[u8]) {
        let start = u32::try_from(self.bytes.len()).expect("batches are bounded");
        self.requests.push(Request { at_us, start });
        self.bytes.extend_from_slice(packed);
    }

    /// Sets the times of the requests from here on, and puts them in order.
    pub(super) fn retime(&mut self, from: usize, mut at_us: impl FnMut(u64) -> u64) {
        let requests = &mut self.requests[from..];
        for request in &mut *requests {
            request.at_us = at_us(request.at_us);
        }
        requests.sort_by_key(|request| request.at_us);
    }

    /// Hands each request to `each`: its time, and the value of each slot.
    pub(super) fn each<'b>(&'b self, slots: usize, mut each: impl FnMut(u64, &[Option<&'b [u8]>])) {
        let mut values = vec![None; slots];
        for request in &self.requests {
            unpack(&self.bytes[request.start as usize..], &mut values);
            each(request.at_us, &values);
        }
    }

    /// Writes it as bytes.
    pub(super) fn write(&self, into: &mut Vec<u8>) {
        let number = |number: usize| u32::try_from(number).expect("batches are bounded");
        into.extend_from_slice(&number(self.requests.len()).to_le_bytes());
        into.extend_from_slice(&number(self.bytes.len()).to_le_bytes());
        for request in &self.requests {
            into.extend_from_slice(&request.at_us.to_le_bytes());
            into.extend_from_slice(&request.start.to_le_bytes());
        }
        into.extend_from_slice(&self.bytes);
    }

    /// How many bytes follow the eight that a written batch begins with.
    pub(super) fn written_length(head: [u8; 8]) -> usize {
        let (requests, bytes) = Self::lengths(head);
        requests * 12 + bytes
    }

    /// Reads what [`write`](Self::write) has written: its first eight bytes, then the rest.
    pub(super) fn read(&mut self, head: [u8; 8], rest: &[u8]) {
        let (count, _) = Self::lengths(head);
        let (requests, bytes) = rest.split_at(count * 12);
        self.requests.clear();
        self.requests.extend(requests.chunks_exact(12).map(|it| {
            let (at_us, start) = it.split_at(8);
            Request {
                at_us: u64::from_le_bytes(at_us.try_into().expect("eight of twelve")),
                start: u32::from_le_bytes(start.try_into().expect("the other four")),
            }
        }));
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
    }

    fn lengths(head: [u8; 8]) -> (usize, usize) {
        let both = u64::from_le_bytes(head);
        let low = usize::try_from(both & u64::from(u32::MAX));
        let high = usize::try_from(both >> 32);
        (low.expect("32 bits"), high.expect("32 bits"))
    }
}
