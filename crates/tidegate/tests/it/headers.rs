//! What clients see, judged by an independent parser of structured fields.
