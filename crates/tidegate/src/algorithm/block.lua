-- Refuses everything, and keeps nothing.

--@fits
fits = false
