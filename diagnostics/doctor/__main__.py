"""`python -m diagnostics.doctor LOG`: the same as `airlock doctor LOG`."""

if __name__ == "__main__":
    from launch.cli import doctor

    doctor(prog_name="python -m diagnostics.doctor")
