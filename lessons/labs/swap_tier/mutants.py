MUTANTS = """
"""
