-- A value that is not what this level writes: the state of another algorithm, which
-- starts anew, or none of ours.

--@other
  if type(state) == 'table' then
    failed = state.err
  else
    local kind, length = string.byte(state), #state
    if not (kind == 1 and length == 36 or kind == 2 and length == 31
      or kind == 3 and length == 42 or kind == 4 and length >= 48
      or kind == 5 and length >= 20 or kind == 6 and length >= 31
      or kind == 7 and length >= 43) then
      --+junk
    end
  end

--@junk
    failed = 'TIDEGATE a key holds what this version has not written'
