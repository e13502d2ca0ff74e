-- A value that is not what this level writes: the state of another algorithm, which
-- starts anew, or none of ours.

--@other
  local kind = string.byte(state)
  if not kind or kind < 1 or kind > 4 then
    error('TIDEGATE a key holds what this version has not written')
  end
